"""Files as users have them: plain, compressed, serialized, and broken in the ways that files are."""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import re
import subprocess
import sys

import pytest

from hloscope.base.errors import HloParseError, TargetError
from hloscope.compile import hlo_files
from hloscope.compile.hlo_files import decode_hlo, is_hlo_target, read_hlo, split_module
from hloscope.hlo import parse_module

TEXT = 'HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0), metadata={op_name="x"}\n}\n'


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, lambda data: b"\xef\xbb\xbf" + data])
def test_text_and_compressed_text(pack, tmp_path):
    path = tmp_path / "step.hlo"
    path.write_bytes(pack(TEXT.encode()))
    assert read_hlo(path) == TEXT


@pytest.mark.parametrize(
    ("target", "is_hlo"),
    [
        ("step.hlo", True),
        ("STEP.HLO", True),
        ("dump.txt.gz", True),
        ("module.hlo.pb", True),
        ("many.hlo#step", True),
        ("many.hlo.xz#2", True),
        ("model.py:step", False),
        ("model.py", False),
        ("model.py:step#2", False),
        ("package.module:step", False),
        (len, False),
    ],
)
def test_what_names_hlo(target, is_hlo):
    assert is_hlo_target(target) is is_hlo


def test_one_module_of_a_file(tmp_path):
    assert split_module("many.hlo#step") == ("many.hlo", "step")
    assert split_module("step.hlo") == ("step.hlo", None)
    assert split_module("#1.hlo") == ("#1.hlo", None)
    assert split_module("step.hlo#") == ("step.hlo#", None)
    odd = tmp_path / "odd#name.hlo"
    odd.write_text(TEXT)
    assert split_module(odd) == (str(odd), None)
    assert split_module(f"{odd}#m") == (str(odd), "m")


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


PACKS = pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstd], ids=["gzip", "xz", "zstd"])


@PACKS
def test_what_a_compressed_file_holds_is_bounded(says, pack, monkeypatch):
    bomb = pack(bytes(5_000_000))
    assert len(bomb) < 6000
    monkeypatch.setattr(hlo_files, "_MOST_BYTES", 1 << 20, raising=False)
    held = []
    monkeypatch.setattr(hlo_files, "_decode_plain", lambda data, name, is_proto: held.append(data))
    with pytest.raises(TargetError) as error:
        decode_hlo(bomb, name="step.hlo.packed")
    assert error.value.what.startswith("step.hlo.packed ")
    assert " 1 MiB" in error.value.why
    if pack is gzip.compress:  # which every Python has
        says(re.sub(r"\bits \S+ k?B\b", "its SIZE", str(error.value)))
    assert held == []


def test_what_a_serialized_module_holds_is_bounded(says, monkeypatch):
    monkeypatch.setattr(hlo_files, "_MOST_BYTES", 1 << 10, raising=False)
    with pytest.raises(TargetError) as error:
        decode_hlo(b"\x0a\x04name" + bytes(1 << 10), name="step.pb")
    assert "large" in error.value.what
    says(error)


@PACKS
def test_what_just_fits_is_read(pack, monkeypatch):
    monkeypatch.setattr(hlo_files, "_MOST_BYTES", len(TEXT), raising=False)
    assert decode_hlo(pack(TEXT.encode()), name="step.hlo.gz") == TEXT


@PACKS
def test_several_streams_in_one_file(pack):
    start, end = TEXT[:20].encode(), TEXT[20:].encode()
    assert decode_hlo(pack(start) + pack(end), name="step.hlo.gz") == TEXT


@PACKS
@pytest.mark.parametrize("step", [1, 7, 1 << 12])
def test_streams_that_end_with_what_is_read_at_once_or_before_zeros(pack, step, monkeypatch):
    monkeypatch.setattr(hlo_files, "_STEP_BYTES", step)
    start, end = TEXT[:20].encode(), TEXT[20:].encode()
    assert decode_hlo(pack(start) + bytes(9) + pack(end) + bytes(5), name="step.hlo.gz") == TEXT


def test_zstd_where_something_can_read_it():
    zstandard = pytest.importorskip("zstandard")
    data = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT.encode())
    assert decode_hlo(data, name="step.hlo.zst") == TEXT
    with pytest.raises(TargetError) as caught:
        decode_hlo(data[:-6], name="step.hlo.zst")
    assert caught.value.what.endswith(" zstd")


def test_zstd_where_nothing_can_read_it(says, monkeypatch):
    for module in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TargetError) as caught:
        decode_hlo(b"\x28\xb5\x2f\xfd....", name="step.hlo.zst")
    assert re.findall(r"step\.hlo\.zst|zstd", caught.value.what) == ["step.hlo.zst", "zstd"]
    assert " 3.14 " in caught.value.why
    assert "pip install zstandard" in caught.value.fix
    says(caught)


@pytest.mark.parametrize(("pack", "kind"), [(gzip.compress, "gzip"), (lzma.compress, "xz")])
@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-9], lambda data: data[:14] + b"\x00\x01\xff" + data[17:]],
    ids=["cut off", "other bytes"],
)
def test_damaged_compression(says, pack, kind, damage):
    with pytest.raises(TargetError) as caught:
        decode_hlo(damage(pack(TEXT.encode() * 50)), name="f.hlo.x")
    assert re.findall(r"f\.hlo\.x|gzip|xz", caught.value.what) == ["f.hlo.x", kind]
    says([caught.value.what, caught.value.fix])


def test_a_missing_file_and_a_folder(says, tmp_path):
    with pytest.raises(TargetError) as caught:
        read_hlo(tmp_path / "none.hlo")
    assert str(tmp_path / "none.hlo") in caught.value.what
    assert caught.value.why == os.strerror(errno.ENOENT)
    says(caught, "file")
    with pytest.raises(TargetError) as caught:
        read_hlo(tmp_path)
    assert caught.value.why == os.strerror(errno.EISDIR)
    says(caught, "folder")


def test_utf16(says):
    with pytest.raises(TargetError) as caught:
        decode_hlo(TEXT.encode("utf-16"), name="f.hlo")
    assert re.findall(r"f\.hlo|UTF-\d+", caught.value.what) == ["f.hlo", "UTF-16", "UTF-8"]
    assert "iconv -f UTF-16 -t UTF-8 f.hlo" in caught.value.fix
    says(caught)


@pytest.mark.parametrize(("byte", "named"), [(b"\xff", "0xFF"), (b"\x00", "NUL")], ids=["0xFF", "NUL"])
def test_bytes_that_are_no_text(says, byte, named):
    with pytest.raises(HloParseError) as caught:
        decode_hlo(TEXT.encode().replace(b"ROOT p", b"ROOT " + byte), name="f.hlo")
    assert re.findall(r"f\.hlo|0xFF|NUL", caught.value.what) == ["f.hlo", named]
    assert caught.value.where == "f.hlo:3:8"
    assert caught.value.excerpt == '  ROOT \ufffd = f32[4] parameter(0), metadata={op_name="x"}\n       ^'
    assert ".pb" in caught.value.fix
    says(caught)


def serialized() -> bytes:
    hlo = pytest.importorskip("jaxlib._hlo")
    return hlo.hlo_module_from_text(TEXT).as_serialized_hlo_module_proto()


def in_hlo_proto(module: bytes) -> bytes:
    """An HloProto, whose first field is the module."""
    length = len(module)
    assert 128 <= length < 1 << 14
    return bytes([0x0A, length & 0x7F | 0x80, length >> 7]) + module


@pytest.mark.parametrize("pack", [bytes, in_hlo_proto, gzip.compress])
@pytest.mark.parametrize("name", ["step.hlo.pb", "step.hlo.pb.gz", "step"])
def test_serialized_modules(pack, name):
    module = parse_module(decode_hlo(pack(serialized()), name=name))
    assert (module.name, module.entry.root.op_name) == ("m", "x")


def test_a_proto_that_is_none(says):
    pytest.importorskip("jaxlib._hlo")
    with pytest.raises(TargetError) as caught:
        decode_hlo(b"hello", name="f.pb")
    assert re.findall(r"f\.pb|jaxlib", caught.value.what) == ["f.pb", "jaxlib"]
    assert caught.value.why
    assert "HloModuleProto" in caught.value.fix
    says([caught.value.what, caught.value.fix])


def test_a_proto_without_jaxlib(says, monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxlib", None)
    with pytest.raises(TargetError) as caught:
        decode_hlo(b"\x0a\x01m\x12\x00", name="f.pb")
    assert re.findall(r"f\.pb|jaxlib", caught.value.what) == ["f.pb", "jaxlib"]
    assert "pip install jaxlib" in caught.value.fix
    says(caught)


def test_text_needs_no_jax(tmp_path):
    path = tmp_path / "step.hlo.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    code = (
        "import sys\nfrom hloscope.compile.hlo_files import read_hlo\n"
        f"read_hlo({str(path)!r})\nprint([name for name in sys.modules if name.startswith('jax')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
