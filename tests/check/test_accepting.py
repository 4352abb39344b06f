"""What `accept` writes: every change, or those that somebody chooses, and nothing that has not changed."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time

import pytest
from check_examples import ROOT, Repository

CAPTURED = ROOT / "fixtures" / "captured"
TARGETS = """\
[defaults]
mesh = { X = 4, Y = 2 }

[targets.layer]
hlo = "layer.hlo"

[targets.product]
hlo = "product.hlo"
"""


def texts(layer, product):
    return {
        name: (CAPTURED / f"{seed}.jax-0.10.hlo").read_text()
        for name, seed in (("layer.hlo", layer), ("product.hlo", product))
    }


@pytest.fixture
def changed(tmp_path):
    """Two targets of HLO text with baselines, and then other texts."""
    repository = Repository(tmp_path, tmp_path / "cache")
    (tmp_path / "hloscope.toml").write_text(TARGETS)
    for name, text in texts("two_matmuls.two_matmuls_shard_map", "matmul.matmul_shard_map").items():
        (tmp_path / name).write_text(text)
    assert repository.run("accept").returncode == 0
    for name, text in texts("mixture_of_experts.mixture_of_experts", "collective_matmul.collective").items():
        (tmp_path / name).write_text(text)
    return repository


def written(repository, name):
    return (repository.folder / "hloscope_baselines" / f"{name}.txt").read_text()


def on_a_terminal(repository, keys, *arguments, term="dumb"):
    """The command's output on a terminal on which somebody presses these keys, one at each question.

    Nothing else is written to it while a question waits for its answer.
    """
    leader, follower = pty.openpty()
    done = subprocess.Popen(
        repository.command(*arguments),
        cwd=repository.folder,
        env={**repository.environment, "TERM": term},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        close_fds=True,
        start_new_session=True,
    )
    os.close(follower)
    said, waiting, ends = "", list(keys), time.monotonic() + 120
    while time.monotonic() < ends:
        if not select.select([leader], [], [], 0.2)[0]:
            if done.poll() is not None:
                break
            continue
        try:
            said += os.read(leader, 65536).decode(errors="replace")
        except OSError:
            break
        if said.endswith("[q]uit: ") and waiting:
            assert not select.select([leader], [], [], 0.3)[0]  # click throws away what was pressed before it listens
            os.write(leader, waiting.pop(0).encode())
    os.close(leader)
    assert done.wait(30) == 0, said
    assert not waiting, said
    return said


def test_each_change_is_asked_about(changed):
    before = {name: written(changed, name) for name in ("layer", "product")}
    said = on_a_terminal(changed, "sq", "accept")
    assert said.count("[a]ccept, [r]eject") == 2
    assert "\n      - " in said.replace("\r", "") or "\n      + " in said.replace("\r", "")
    assert {name: written(changed, name) for name in before} == before
    assert on_a_terminal(changed, "tt", "accept").count("rewritten") == 2
    assert changed.run("check").returncode == 0
    assert "[a]ccept" not in on_a_terminal(changed, "", "accept")


def test_a_question_stays_on_a_terminal_that_shows_progress(changed):
    said = on_a_terminal(changed, "rq", "accept", term="xterm")
    assert "\x1b[2K" in said  # the progress that went away
    assert "\x1b[2K" not in said[said.index("[a]ccept") : said.rindex("[q]uit: ")]


def test_what_was_accepted_before_quitting_is_kept(changed):
    before = {name: written(changed, name) for name in ("layer", "product")}
    said = on_a_terminal(changed, "aq", "accept").replace("\r", "")
    assert "layer: rewritten in part  hloscope_baselines/layer.txt\n   = note: 1 of " in said
    assert "product: not asked  hloscope_baselines/product.txt\n" in said
    assert written(changed, "layer") != before["layer"]
    assert written(changed, "product") == before["product"]
    _, checks = changed.document("check", "layer")
    assert str(len(checks["layer"]["judged"]["causes"]) + 1) in said.partition("note: 1 of ")[2]


def test_everything_is_accepted_without_asking(changed):
    assert "[a]ccept" not in on_a_terminal(changed, "", "accept", "--all")
    assert changed.run("check").returncode == 0


def test_one_change_is_accepted_by_the_name_that_the_check_gives_it(changed, says):
    code, checks = changed.document("check", "layer")
    keys = list(dict.fromkeys(cause["key"] for cause in checks["layer"]["judged"]["causes"]))
    assert (code, len(keys) > 1) == (1, True)
    refused = changed.run("accept", "layer", "--only", "all-gathr@X")
    assert refused.returncode == 2
    says(refused.stderr)
    done = changed.run("accept", "layer", *(part for key in keys[1:] for part in ("--only", key)))
    said = f"layer: rewritten in part  hloscope_baselines/layer.txt\n   = note: {len(keys) - 1} of {len(keys)} changes"
    assert done.stdout == f"{said} accepted\n"
    _, checks = changed.document("check", "layer")
    assert {cause["key"] for cause in checks["layer"]["judged"]["causes"]} == {keys[0]}
    assert changed.run("accept", "layer", "--only", keys[0]).returncode == 0
    assert changed.document("check", "layer")[0] == 0
