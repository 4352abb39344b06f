"""Figures of a chip that the user replaces."""

import re

import pytest

from hloscope.base.errors import SliceError
from hloscope.tpu import parse_slice
from hloscope.tpu.slices import override_chip


def test_a_figure_is_replaced_and_nothing_else():
    plain = parse_slice("v5e:2x4")
    changed = override_chip(plain, ["hbm_bytes_per_s=750e9", "vmem_bytes=1048576"])
    assert (changed.chip.hbm_bytes_per_s, changed.chip.vmem_bytes) == (750e9, 1048576)
    assert isinstance(changed.chip.vmem_bytes, int)
    assert changed.chip.ici_bytes_per_s == plain.chip.ici_bytes_per_s
    assert changed.name == plain.name


def test_a_file_speaks_of_all_generations_or_of_one(tmp_path):
    path = tmp_path / "chips.toml"
    path.write_text("dcn_bytes_per_s = 2e9\n\n[v5litepod]\nici_bytes_per_s = 44e9\n\n[v5p]\nici_bytes_per_s = 1e9\n")
    changed = override_chip(parse_slice("v5e:2x4"), [str(path), "ici_bytes_per_s=43e9"])
    assert (changed.chip.dcn_bytes_per_s, changed.chip.ici_bytes_per_s) == (2e9, 43e9)
    assert override_chip(parse_slice("v5p:2x2x1"), [str(path)]).chip.ici_bytes_per_s == 1e9


@pytest.mark.parametrize("slice_name", ["cpu:8", None])
def test_devices_without_a_chip_have_no_figures(says, slice_name):
    chosen = None if slice_name is None else parse_slice(slice_name)
    assert override_chip(chosen, ()) is chosen
    with pytest.raises(SliceError) as caught:
        override_chip(chosen, ["hbm_bytes_per_s=1"])
    assert "hbm_bytes_per_s=1" in caught.value.what
    assert ("cpu:8" in caught.value.why) is (slice_name is not None)
    assert "--chip-override" in caught.value.fix
    says(caught)


@pytest.mark.parametrize(
    ("override", "wrong", "right"),
    [
        ("hbm_byte_per_s=1", "hbm_byte_per_s", "hbm_bytes_per_s?"),
        ("clock_hz=fast", "'fast'", ["1", "1e+24"]),
        ("clock_hz=-1", "-1.0", ["1", "1e+24"]),
        ("clock_hz=0", "0.0", ["1", "1e+24"]),
        ("hbm_bytes=0.5", "0.5", ["1", "1e+24"]),
        ("hbm_bytes=1.5", "1.5", []),
        ("clock_hz=1e300", "1e+300", ["1", "1e+24"]),
        ("clock_hz=nan", "nan", ["1", "1e+24"]),
        ("nowhere.toml", "nowhere.toml", "--chip-override"),
    ],
)
def test_what_cannot_be_read_is_said(says, override, wrong, right, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SliceError) as caught:
        override_chip(parse_slice("v5e:2x4"), [override])
    error = caught.value
    assert error.where == (override if "=" in override else None)
    assert error.what.startswith(override.partition("=")[0])
    assert wrong in error.what
    if isinstance(right, str):
        assert right in error.fix
    else:
        assert re.findall(r" (1|1e\+24)\b", error.what.removesuffix(wrong)) == right
    says(caught)


def test_what_decides_which_slices_exist_is_no_figure(says):
    with pytest.raises(SliceError) as caught:
        override_chip(parse_slice("v5e:2x4"), ["devices_per_chip=2"])
    assert caught.value.what.startswith("devices_per_chip ")
    says(caught)
