"""Changes of a small model repository, each judged as a reviewer would: worse, better, different or the same, and why.

The repository's baselines are of `regressions/model.py` as it stands; each case is an edit of it or of its targets.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
from check_examples import Repository
from sampled import first

HERE = Path(__file__).parent / "regressions"


class Case(NamedTuple):
    """An edit, and what is to be said of it.

    Attributes:
        edits: What is replaced by what, in the model or in the targets file.
        judgement: Of the whole.
        said: What one of the causes says.
        at: A part of the line that it points at; None where it points at none.
        target: The target that it is about.
    """

    edits: tuple[tuple[str, str], ...]
    judgement: str
    said: str
    at: str | None
    target: str = "step"


CASES = {
    "float32 activations": Case(
        (("ACTIVATIONS = jnp.bfloat16", "ACTIVATIONS = jnp.float32"),), "worse", "float32 where bfloat16 was", "out = "
    ),
    "a gradient that is not summed": Case(
        (('params["up"], params["down"])', 'jax.lax.stop_gradient(params["up"]), params["down"])'),),
        "different",
        "1 of 9 arrays is no longer summed over data",
        "einsum",
    ),
    "take for one-hot": Case(
        (
            (
                "    hot = jax.nn.one_hot(tokens, VOCABULARY, dtype=ACTIVATIONS)\n"
                '    return jnp.einsum("bsv,vd->bsd", hot, params["embed"].astype(ACTIVATIONS))',
                '    return jnp.take(params["embed"].astype(ACTIVATIONS), tokens, axis=0)',
            ),
        ),
        "better",
        "the matmuls in embedded do less",
        None,
    ),
    "a comment": Case((("def embedded(", "# a comment\n\n\ndef embedded("),), "same", "", None),
    "a mean that is not taken": Case(
        (('jax.lax.pmean(grad, "data")', "grad"),),
        "different",
        "no longer summed over data (was: `mean",
        "pmean(loss",
        "local",
    ),
    "float32 gradients": Case(
        (("pmean(grad, ", "pmean(grad.astype(jnp.float32), "),),
        "worse",
        "float32 where bfloat16 was",
        "pmean(grad",
        "local",
    ),
    "a constraint dropped": Case(
        (('    gates = jax.lax.with_sharding_constraint(gates, P("data", None, "model"))\n', ""),),
        "worse",
        "the matmuls in gated do more",
        "gates = x @ gate",
        "gates",
    ),
    "a wrong output": Case(
        (('"P(None, \'model\')", "P()", "P()"]', '"P(None, None)", "P()", "P()"]'),),
        "worse",
        "2 all-gathers over model move more than before",
        None,
    ),
    "a concatenation across shards": Case(
        (
            (
                '    out = jnp.einsum("bsf,fd->bsd", hidden',
                "    hidden = jnp.concatenate([hidden[..., 512:], hidden[..., :512]], -1)\n"
                '    out = jnp.einsum("bsf,fd->bsd", hidden',
            ),
        ),
        "worse",
        "collective-permutes over model are new",
        "jnp.concatenate",
    ),
    "another order of multiplication": Case(
        (
            (
                '(x @ params["narrow"].astype(ACTIVATIONS)) @ params["wide"].astype(ACTIVATIONS)',
                'x @ (params["narrow"].astype(ACTIVATIONS) @ params["wide"].astype(ACTIVATIONS))',
            ),
        ),
        "worse",
        "the matmuls in adapted do more",
        'params["narrow"]',
    ),
    "the vocabulary over another axis": Case(
        (('embed = "f32[4096@model,512]"', 'embed = "f32[4096@data,512]"'),), "worse", "over data", None
    ),
    "eight more matmuls": Case((("range(1)", "range(9)"),), "worse", "the matmuls in mixed do more", "x @ mix"),
}


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    """The repository with the baseline of a target, which is compiled once for all its cases."""
    folder = tmp_path_factory.mktemp("regressions") / "repository"
    shutil.copytree(HERE, folder)
    repository = Repository(folder, tmp_path_factory.mktemp("cache"))

    @cache
    def with_baseline_of(target: str) -> Repository:
        done = repository.run("accept", target)
        assert done.returncode == 0, done.stdout + done.stderr
        return repository

    return with_baseline_of


@pytest.fixture
def edited(accepted, tmp_path):
    """The repository after an edit."""

    def edit(case: Case) -> Repository:
        unedited = accepted(case.target)
        shutil.copytree(unedited.folder, tmp_path / "repository")
        repository = Repository(tmp_path / "repository", unedited.cache)
        for before, after in case.edits:
            changed = 0
            for path in (repository.folder / "model.py", repository.folder / "hloscope.toml"):
                text = path.read_text()
                changed += text.count(before)
                path.write_text(text.replace(before, after))
            assert changed == 1, before
        return repository

    return edit


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("name", first(4, CASES))
def test_a_change_is_judged(edited, name, says):
    case = CASES[name]
    repository = edited(case)
    done = repository.run("check", case.target, "--jobs", 1, "--write", "json=found.json")
    checks = json.loads((repository.folder / "found.json").read_text())["checks"]
    (judged,) = (check["judged"] for check in checks if check["name"] == case.target)
    assert judged["judgement"] == case.judgement
    assert done.returncode == (case.judgement in ("worse", "different"))
    if judged["causes"]:
        cause = next(cause for cause in judged["causes"] if case.said in cause["message"])
        assert case.at is None or case.at in line_of(repository, cause["source"])
        assert cause["judgement"] == case.judgement
    else:
        assert case.judgement == "same"
    if version("jax").startswith("0.10."):  # whose figures stand there
        says(done.stdout)


def line_of(repository: Repository, source: str) -> str:
    file, _, number = source.rpartition(":")
    return (repository.folder / file).read_text().splitlines()[int(number) - 1]
