"""Files as users have them: plain, compressed, serialized, and broken in the ways that files are."""

from __future__ import annotations

import gzip
import lzma
import subprocess
import sys

import pytest

from hloscope.errors import HloParseError, TargetError
from hloscope.hlo import parse_module
from hloscope.program import files
from hloscope.program.files import decode_hlo, names_hlo, read_hlo, split_module

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
    assert names_hlo(target) is is_hlo


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
def test_what_a_compressed_file_holds_is_bounded(pack, monkeypatch):
    bomb = pack(bytes(5_000_000))
    assert len(bomb) < 6000
    monkeypatch.setattr(files, "_MOST_BYTES", 1 << 20, raising=False)
    held = []
    monkeypatch.setattr(files, "_decode_plain", lambda data, name, is_proto: held.append(data))
    with pytest.raises(TargetError) as error:
        decode_hlo(bomb, name="step.hlo.packed")
    first, why, fix = str(error.value).splitlines()
    assert first == "error: step.hlo.packed is too large to be unpacked here"
    assert "hold more than 1 MiB: likely it is damaged" in why
    assert fix == "   = fix: if it is what it should be, unpack it and give the module's text"
    assert held == []


def test_what_a_serialized_module_holds_is_bounded(monkeypatch):
    monkeypatch.setattr(files, "_MOST_BYTES", 1 << 10, raising=False)
    with pytest.raises(TargetError, match=r"step\.pb is too large to be unpacked here"):
        decode_hlo(b"\x0a\x04name" + bytes(1 << 10), name="step.pb")


@PACKS
def test_what_just_fits_is_read(pack, monkeypatch):
    monkeypatch.setattr(files, "_MOST_BYTES", len(TEXT), raising=False)
    assert decode_hlo(pack(TEXT.encode()), name="step.hlo.gz") == TEXT


@PACKS
def test_several_streams_in_one_file(pack):
    start, end = TEXT[:20].encode(), TEXT[20:].encode()
    assert decode_hlo(pack(start) + pack(end), name="step.hlo.gz") == TEXT


def test_zstd_where_something_can_read_it():
    zstandard = pytest.importorskip("zstandard")
    data = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT.encode())
    assert decode_hlo(data, name="step.hlo.zst") == TEXT
    with pytest.raises(TargetError, match="cannot be decompressed as zstd"):
        decode_hlo(data[:-6], name="step.hlo.zst")


def test_zstd_where_nothing_can_read_it(monkeypatch):
    for module in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TargetError) as caught:
        decode_hlo(b"\x28\xb5\x2f\xfd....", name="step.hlo.zst")
    assert str(caught.value) == (
        "error: step.hlo.zst is compressed by zstd, and nothing here can read that\n"
        "   = why: Python has zstd in its standard library from 3.14 on\n"
        "   = fix: pip install zstandard, or decompress the file: zstd -d"
    )


@pytest.mark.parametrize(("pack", "kind"), [(gzip.compress, "gzip"), (lzma.compress, "xz")])
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:14] + b"\x00\x01\xff" + data[17:]])
def test_damaged_compression(pack, kind, damage):
    with pytest.raises(TargetError) as caught:
        decode_hlo(damage(pack(TEXT.encode() * 50)), name="f.hlo.x")
    first, *_, last = str(caught.value).splitlines()
    assert first == f"error: f.hlo.x cannot be decompressed as {kind}"
    assert last == "   = fix: get the file again, or decompress it to see what it holds"


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(TargetError) as caught:
        read_hlo(tmp_path / "none.hlo")
    assert str(caught.value) == (
        f"error: {tmp_path / 'none.hlo'} cannot be read\n   = why: No such file or directory\n"
        "   = fix: check the path and its permissions"
    )
    with pytest.raises(TargetError, match="cannot be read"):
        read_hlo(tmp_path)


def test_utf16():
    with pytest.raises(TargetError) as caught:
        decode_hlo(TEXT.encode("utf-16"), name="f.hlo")
    assert str(caught.value) == (
        "error: f.hlo is UTF-16 text, and HLO is read as UTF-8\n"
        "   = fix: iconv -f UTF-16 -t UTF-8 f.hlo > converted.hlo"
    )


@pytest.mark.parametrize(
    ("byte", "what"),
    [
        (b"\xff", "f.hlo is not UTF-8 text: byte 0xFF cannot be read"),
        (b"\x00", "f.hlo is no text: it holds a NUL byte"),
    ],
)
def test_bytes_that_are_no_text(byte, what):
    with pytest.raises(HloParseError) as caught:
        decode_hlo(TEXT.encode().replace(b"ROOT p", b"ROOT " + byte), name="f.hlo")
    assert str(caught.value) == (
        f"error: {what}\n  --> f.hlo:3:8\n"
        '   |   ROOT \ufffd = f32[4] parameter(0), metadata={op_name="x"}\n'
        "   |        ^\n"
        "   = fix: give the text as XLA wrote it; a serialized module's name must end in .pb"
    )


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


def test_a_proto_that_is_none():
    pytest.importorskip("jaxlib._hlo")
    with pytest.raises(TargetError) as caught:
        decode_hlo(b"hello", name="f.pb")
    first, why, fix = str(caught.value).splitlines()
    assert first == "error: f.pb is no serialized HLO module that jaxlib can read"
    assert why.startswith("   = why: ")
    assert fix.startswith("   = fix: give an HloModuleProto or HloProto")


def test_a_proto_without_jaxlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxlib", None)
    with pytest.raises(TargetError) as caught:
        decode_hlo(b"\x0a\x01m\x12\x00", name="f.pb")
    assert str(caught.value) == (
        "error: f.pb is a serialized module, which only jaxlib can read\n"
        "   = why: jaxlib is not installed\n"
        "   = fix: pip install jaxlib, or give the module's text"
    )


def test_text_needs_no_jax(tmp_path):
    path = tmp_path / "step.hlo.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    code = (
        "import sys\nfrom hloscope.program.files import read_hlo\n"
        f"read_hlo({str(path)!r})\nprint([name for name in sys.modules if name.startswith('jax')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
