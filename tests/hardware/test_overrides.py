"""Figures of a chip that the user replaces."""

import pytest

from hloscope.errors import SliceError
from hloscope.hardware import parse_slice
from hloscope.hardware.overrides import overridden


def test_a_figure_is_replaced_and_nothing_else():
    plain = parse_slice("v5e:2x4")
    changed = overridden(plain, ["hbm_bytes_per_s=750e9", "vmem_bytes=1048576"])
    assert (changed.chip.hbm_bytes_per_s, changed.chip.vmem_bytes) == (750e9, 1048576)
    assert isinstance(changed.chip.vmem_bytes, int)
    assert changed.chip.ici_bytes_per_s == plain.chip.ici_bytes_per_s
    assert changed.name == plain.name


def test_a_file_speaks_of_all_generations_or_of_one(tmp_path):
    path = tmp_path / "chips.toml"
    path.write_text("dcn_bytes_per_s = 2e9\n\n[v5litepod]\nici_bytes_per_s = 44e9\n\n[v5p]\nici_bytes_per_s = 1e9\n")
    changed = overridden(parse_slice("v5e:2x4"), [str(path), "ici_bytes_per_s=43e9"])
    assert (changed.chip.dcn_bytes_per_s, changed.chip.ici_bytes_per_s) == (2e9, 43e9)
    assert overridden(parse_slice("v5p:2x2x1"), [str(path)]).chip.ici_bytes_per_s == 1e9


@pytest.mark.parametrize(("slice_name", "why"), [("cpu:8", "cpu:8 has no TPU chips"), (None, "no slice is named")])
def test_devices_without_a_chip_have_no_figures(slice_name, why):
    chosen = None if slice_name is None else parse_slice(slice_name)
    assert overridden(chosen, ()) is chosen
    with pytest.raises(SliceError) as caught:
        overridden(chosen, ["hbm_bytes_per_s=1"])
    assert str(caught.value) == (
        f"error: there is no chip whose figures hbm_bytes_per_s=1 could override\n   = why: {why}\n"
        "   = fix: name a slice such as v5e:2x4, or leave --chip-override out"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "hbm_byte_per_s=1",
            "error: hbm_byte_per_s is no figure of a chip\n  --> hbm_byte_per_s=1\n"
            "   = fix: did you mean hbm_bytes_per_s?",
        ),
        (
            "clock_hz=fast",
            "error: clock_hz must be a number from 1 to 1e+24, not 'fast'\n  --> clock_hz=fast",
        ),
        ("clock_hz=-1", "error: clock_hz must be a number from 1 to 1e+24, not -1.0\n  --> clock_hz=-1"),
        ("clock_hz=0", "error: clock_hz must be a number from 1 to 1e+24, not 0.0\n  --> clock_hz=0"),
        ("hbm_bytes=0.5", "error: hbm_bytes must be a number from 1 to 1e+24, not 0.5\n  --> hbm_bytes=0.5"),
        ("hbm_bytes=1.5", "error: hbm_bytes must be a whole number, not 1.5\n  --> hbm_bytes=1.5"),
        ("clock_hz=1e300", "error: clock_hz must be a number from 1 to 1e+24, not 1e+300\n  --> clock_hz=1e300"),
        ("clock_hz=nan", "error: clock_hz must be a number from 1 to 1e+24, not nan\n  --> clock_hz=nan"),
        (
            "nowhere.toml",
            "error: nowhere.toml cannot be read\n   = why: [Errno 2] No such file or directory: 'nowhere.toml'\n"
            "   = fix: give --chip-override NAME=VALUE or a TOML file",
        ),
    ],
)
def test_what_cannot_be_read_is_said(override, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SliceError) as caught:
        overridden(parse_slice("v5e:2x4"), [override])
    assert str(caught.value) == message


def test_what_decides_which_slices_exist_is_no_figure():
    with pytest.raises(SliceError, match="devices_per_chip is no figure of a chip"):
        overridden(parse_slice("v5e:2x4"), ["devices_per_chip=2"])
