"""Files that are not what they claim to be: each is refused with the file's name, none is guessed at."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nvgpu.errors import FormatError, InputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import Dtype

Write = Callable[..., Path]
Data = bytearray

_SECTIONS = {"header": 0x10, "directory": 0x20, "data": 0x30, "masks": 0x40, "vocab": 0x50, "index": 0x60}
_TENSORS = {"first": np.ones((4, 8)), "second": np.ones((4, 8))}


@pytest.fixture
def sound(write_cmf: Write) -> Data:
    """A sound file whose section hashes are cleared, so that a change is judged by what it breaks."""
    data = Data(write_cmf(_TENSORS, Dtype.Q8_ROW, tokenizer=b'{"a": 1}').read_bytes())
    data[0x70:0x80] = bytes(16)
    return data


def _refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.cmf"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message) as e:
        CmfFile.open(path)
    assert str(path) in str(e.value) and "\n" not in str(e.value)


def _section(data: Data, name: str) -> tuple[int, int]:
    return struct.unpack_from("<QQ", data, _SECTIONS[name])


def _set_section(data: Data, name: str, offset: int, length: int) -> None:
    struct.pack_into("<QQ", data, _SECTIONS[name], offset, length)


def _record(data: Data, i: int) -> int:
    return _section(data, "directory")[0] + 16 + 56 * i


def test_the_base_is_sound(sound: Data, tmp_path: Path) -> None:
    path = tmp_path / "good.cmf"
    path.write_bytes(sound)
    with CmfFile.open(path) as model:
        assert list(model.tensors) == ["first", "second"]


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, b"GGUF", "not a CMF file: it begins with b'GGUF'"),
        (3, b"\2", "not a CMF file"),
        (4, b"\1", "CMF version 1, expected 2"),
        (12, b"\x09", "unknown feature bits 3"),
        (12, b"\x01\x80\x00\x80", "unknown feature bits 15, 31"),
    ],
)
def test_envelope_fields(sound: Data, tmp_path: Path, offset: int, value: bytes, message: str) -> None:
    sound[offset : offset + len(value)] = value
    _refused(tmp_path, sound, message)


@pytest.mark.parametrize("kept", [0, 1, 64, 127])
def test_shorter_than_an_envelope(sound: Data, tmp_path: Path, kept: int) -> None:
    _refused(tmp_path, sound[:kept], f"{kept} bytes, expected at least the 128")


@pytest.mark.parametrize("cut", ["one byte", "half", "before the vocabulary"])
def test_truncated(sound: Data, tmp_path: Path, cut: str) -> None:
    keep = {"one byte": len(sound) - 1, "half": len(sound) // 2}.get(cut, _section(sound, "vocab")[0] - 1)
    _refused(tmp_path, sound[:keep], "section (data|vocab) spans bytes")


@pytest.mark.parametrize("name", list(_SECTIONS))
@pytest.mark.parametrize("offset", [0, 127, 1 << 40, (1 << 64) - 1])
def test_sections_out_of_bounds(sound: Data, tmp_path: Path, name: str, offset: int) -> None:
    _set_section(sound, name, offset, max(1, _section(sound, name)[1]))
    _refused(tmp_path, sound, f"section {name} spans bytes")


def test_unaligned_data(sound: Data, tmp_path: Path) -> None:
    offset, length = _section(sound, "data")
    _set_section(sound, "data", offset + 64, length - 64)
    _refused(tmp_path, sound, "section data begins at 4160, expected a multiple of 4096")


@pytest.mark.parametrize("name", ["vocab", "masks", "index"])
def test_overlapping_sections(sound: Data, tmp_path: Path, name: str) -> None:
    offset, length = _section(sound, "directory")
    _set_section(sound, name, offset + 1, length - 1)
    _refused(tmp_path, sound, f"section directory and section {name} overlap")


def test_section_over_a_tensor(sound: Data, tmp_path: Path) -> None:
    _set_section(sound, "vocab", _section(sound, "data")[0] + 4, 8)
    _refused(tmp_path, sound, "tensor first and section vocab overlap")


def test_sections_may_stand_between_tensors(sound: Data, tmp_path: Path) -> None:
    _set_section(sound, "vocab", _section(sound, "data")[0] + 48, 8)  # as append-only growth leaves them
    path = tmp_path / "good.cmf"
    path.write_bytes(sound)
    CmfFile.open(path).close()


def _patch(data: Data, record: int, field: int, form: str, value: int) -> None:
    struct.pack_into("<" + form, data, _record(data, record) + field, value)


@pytest.mark.parametrize(
    ("field", "form", "value", "message"),
    [
        (0, "I", 1 << 31, "tensor 1: its name lies outside"),
        (4, "H", 65535, "tensor 1: its name lies outside"),
        (6, "B", 5, "tensor second: unknown dtype 5"),
        (6, "B", 200, "tensor second: unknown dtype 200"),
        (7, "B", 7, "tensor second: 7 axes, expected at most 6"),
        (7, "B", 1, "tensor second: q8_row with shape"),
        (8, "I", 5, r"tensor second: 40 bytes, expected 50 for q8_row \[5, 8\]"),
        (8, "I", 0xFFFFFFFF, "tensor second: 40 bytes, expected"),
        (32, "Q", 65, "tensor second: begins at 65, expected a multiple of 64"),
        (32, "Q", 128, "tensor second: spans bytes 128 to 168"),
        (32, "Q", (1 << 64) - 64, "tensor second: spans bytes"),
        (32, "Q", 0, "tensor (first|second) and tensor (first|second) overlap"),
        (40, "Q", 41, "tensor second: (spans|41 bytes)"),
        (40, "Q", (1 << 64) - 1, "tensor second: spans bytes"),
        (40, "Q", 39, "tensor second: 39 bytes, expected 40"),
    ],
)
def test_records(sound: Data, tmp_path: Path, field: int, form: str, value: int, message: str) -> None:
    _patch(sound, 1, field, form, value)
    _refused(tmp_path, sound, message)


def test_shape_product_overflow(sound: Data, tmp_path: Path) -> None:
    struct.pack_into("<BB6I", sound, _record(sound, 1) + 6, 0, 6, *[0xFFFFFFFF] * 6)  # 2^192 elements
    _refused(tmp_path, sound, "tensor second: shape .*, expected fewer than 2\\^60 weights")
    struct.pack_into(
        "<BB6I", sound, _record(sound, 1) + 6, 0, 3, 1 << 31, 1 << 31, 4, 0, 0, 0
    )  # 0 modulo 2^64
    struct.pack_into("<Q", sound, _record(sound, 1) + 40, 0)
    _refused(tmp_path, sound, "tensor second: shape .*, expected fewer than 2\\^60 weights")
    struct.pack_into(
        "<BB6I", sound, _record(sound, 1) + 6, 0, 4, *[0xFFFFFFFF] * 3, 0, 0, 0
    )  # empty, all the same
    _refused(tmp_path, sound, "tensor second: shape .*, expected fewer than 2\\^60 weights")
    struct.pack_into("<BB6I", sound, _record(sound, 1) + 6, 0, 2, 1 << 31, 1 << 28, 0, 0, 0, 0)
    _refused(tmp_path, sound, "tensor second: 0 bytes, expected")


@pytest.mark.parametrize("count", [3, 1 << 32, 1 << 60, (1 << 64) - 1])
def test_record_count(sound: Data, tmp_path: Path, count: int) -> None:
    struct.pack_into("<Q", sound, _section(sound, "directory")[0], count)
    _refused(tmp_path, sound, f"has {count} records")


def test_name_pool_inside_the_records(sound: Data, tmp_path: Path) -> None:
    struct.pack_into("<Q", sound, _section(sound, "directory")[0] + 8, 16)
    _refused(tmp_path, sound, "and its names at 16")


def test_short_directory(sound: Data, tmp_path: Path) -> None:
    _set_section(sound, "directory", _section(sound, "directory")[0], 15)
    _refused(tmp_path, sound, "tensor directory has 15 bytes")


def test_duplicate_names(sound: Data, tmp_path: Path) -> None:
    sound[_record(sound, 1) : _record(sound, 1) + 6] = sound[_record(sound, 0) : _record(sound, 0) + 6]
    _refused(tmp_path, sound, "tensor first stands twice")


def test_name_is_not_utf8(sound: Data, tmp_path: Path) -> None:
    sound[sound.index(b"firstsecond")] = 0xFF
    _refused(tmp_path, sound, "tensor 0: its name is not UTF-8")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "header: not JSON"),
        (b"[]", "header: found a JSON list, expected an object"),
        (b"{", "header: not JSON"),
        (b'{"arch": {}, "x": NaN}', "NaN is no JSON number"),
        (b'{"arch": {}, "arch": {}}', "key 'arch' stands twice"),
        (b"\xff\xfe", "header: not UTF-8 at byte 0"),
        (b"[" * 100_000, "header: not JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", "header: not JSON"),
        (b"{}", "header: arch is missing"),
        (b'{"arch": 3}', "header: arch is missing or not an object"),
        (
            b'{"arch": {}, "shard": {"no": 2, "count": 5}}',
            "shard 2 of 5, expected a name that ends with -00002-of",
        ),
        (
            b'{"arch": {}, "shard": {"no": 6, "count": 5}}',
            "header: shard is {'no': 6, 'count': 5}, expected no and",
        ),
        (b'{"arch": {}, "shard": {"no": 1, "count": 1000000}}', "expected no and count"),
        (b'{"arch": {}, "shard": {"no": true, "count": 2}}', "expected no and count"),
        (b'{"arch": {}, "shard": [1, 2]}', "expected no and count"),
    ],
)
def test_headers(sound: Data, tmp_path: Path, header: bytes, message: str) -> None:
    _set_section(sound, "header", len(sound), len(header))
    _refused(tmp_path, sound + header, message)


@pytest.mark.parametrize("section", ["header", "directory"])
def test_flipped_bytes_are_seen(write_cmf: Write, tmp_path: Path, section: str) -> None:
    data = Data(write_cmf(_TENSORS, header={"arch": {}, "note": "x"}).read_bytes())
    offset, length = _section(data, section)
    data[offset + length - 3] ^= 1
    _refused(tmp_path, data, f"section {section} does not match its hash")


def test_blr_payload_is_checked_on_opening(tmp_path: Path, sound: Data) -> None:
    struct.pack_into("<B", sound, _record(sound, 1) + 6, 19)
    _refused(tmp_path, sound, "tensor second: BLR magic is 127, expected 0x4c")


def test_git_lfs_pointer(tmp_path: Path) -> None:
    _refused(tmp_path, b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a Git LFS pointer")


def test_not_a_regular_file(tmp_path: Path) -> None:
    folder = tmp_path / "model.cmf"
    folder.mkdir()
    with pytest.raises(FormatError, match=r"model\.cmf: a folder"):
        CmfFile.open(folder)
    os.mkfifo(tmp_path / "pipe.cmf")
    with pytest.raises(FormatError, match=r"pipe\.cmf: a special file"):
        CmfFile.open(tmp_path / "pipe.cmf")
    (tmp_path / "loop.cmf").symlink_to(tmp_path / "loop.cmf")
    with pytest.raises(InputError, match=r"loop\.cmf: too many levels"):
        CmfFile.open(tmp_path / "loop.cmf")
