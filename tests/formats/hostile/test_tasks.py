"""Masks and skills: what they say, and sections and registries that are not what they claim to be."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import FormatError
from nvgpu.formats.cmf import CmfFile, CmfWriter
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.masks import read_masks
from nvgpu.formats.skills import read_skills

ARCH = {"num_layers": 2, "intermediate_size": 12, "num_attention_heads": 3}
BLOB = bytes([0xFF, 0x0F, 0x01, 0x00, 0b101, 0b001, 0b11])  # neurons, heads, gates


def section(records: list[Any] | None = None, blob: bytes = BLOB, count: int | None = None) -> bytes:
    """A masks section: the blob stands at byte 512."""
    given = [mask()] if records is None else records
    meta = json.dumps({"default_task": "a", "masks": given}).encode()
    head = struct.pack("<II", len(given) if count is None else count, len(meta)) + meta
    return head.ljust(512, b"\0") + blob


def mask(**changes: Any) -> dict[str, Any]:
    quality = {"metric": "heldout_ppl_ratio", "value": 0.97}
    record = {"task_id": 0, "name": "a", "quality": quality, "blob_off": 512, "blob_len": len(BLOB)}
    return {**record, **changes}


def test_a_mask() -> None:
    (found,) = read_masks(section(), ARCH, "m")
    assert (found.name, found.task_id, found.layers, found.experts) == ("a", 0, 2, False)
    assert found.neurons == pytest.approx(13 / 24) and found.heads == pytest.approx(3 / 6)
    assert found.quality == {"metric": "heldout_ppl_ratio", "value": 0.97}
    assert read_masks(b"", ARCH, "m") == []


def test_a_mask_of_experts() -> None:
    arch = {**ARCH, "moe": {"num_experts": 9}}
    blob = BLOB + bytes([255, 1, 255, 0])
    record = mask(has_expert_fields=True, blob_len=len(blob), quality=None)
    assert read_masks(section([record], blob), arch, "m")[0].experts
    with pytest.raises(FormatError, match="a bit beyond entry 9"):
        read_masks(section([record], BLOB + bytes([255, 3, 255, 0])), arch, "m")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0" * 7, "7 bytes, expected at least 8"),
        (struct.pack("<II", 1, 1 << 31), "JSON of 2147483648 bytes in a section of 8"),
        (struct.pack("<II", 1, 2) + b"{}", "expected a list of 1 masks"),
        (struct.pack("<II", 1, 2) + b"[]", "found a JSON list"),
        (struct.pack("<II", 0, 4) + b"\xff{}}", "not UTF-8"),
        (section(count=2), "expected a list of 2 masks"),
        (section(count=1 << 31), "expected a list of 2147483648 masks"),
        (section([3]), "mask 0: not an object with a name"),
        (section([mask(name=None)]), "not an object with a name"),
        (section([mask(blob_off=-8)]), "blob_off is -8, expected a whole number"),
        (section([mask(blob_len=True)]), "blob_len is True"),
        (section([mask(blob_off=511)]), "spans bytes 511 to 518 of 519"),
        (section([mask(blob_off=520)]), "spans bytes 520"),
        (section([mask(blob_off=1 << 80)]), "spans bytes"),
        (section([mask(blob_len=6)]), "6 bytes, expected 7 for its layers"),
        (section([mask(has_expert_fields=True)]), "a bit|7 bytes|^"),
        (section([mask(quality=1.0)]), "quality is float"),
        (section(blob=bytes([0xFF, 0x1F]) + BLOB[2:]), "a bit beyond entry 12 of a row is set"),
        (section(blob=BLOB[:4] + bytes([0b1101]) + BLOB[5:]), "a bit beyond entry 3"),
        (section(blob=BLOB[:6] + bytes([0b111])), "a bit beyond entry 2"),
    ],
)
def test_masks_that_are_refused(data: bytes, message: str) -> None:
    if message.endswith("^"):  # without experts in the arch the flag asks for nothing
        assert len(read_masks(data, ARCH, "m")) == 1
        return
    with pytest.raises(FormatError, match=f"^m: masks.*{message}"):
        read_masks(data, ARCH, "m")


@pytest.mark.parametrize("key", list(ARCH))
@pytest.mark.parametrize("value", [None, 0, -1, "3", True, 1 << 40])
def test_masks_need_the_sizes_of_the_arch(key: str, value: Any) -> None:
    with pytest.raises(FormatError, match=f"arch.{key} is"):
        read_masks(section(), {**ARCH, key: value}, "m")


def test_every_bad_mask_is_reported() -> None:
    found: list[FormatError] = []
    records = [mask(blob_len=6), mask(), mask(blob_off=513)]
    assert len(read_masks(section(records), ARCH, "m", found.append)) == 1
    assert ["mask 0" in str(found[0]), "mask 2" in str(found[1]), len(found)] == [True, True, 2]


def test_masks_are_carried_and_announced(tmp_path: Path) -> None:
    path = tmp_path / "m.cmf"
    with CmfWriter(path, {"arch": ARCH}, [], None, {"masks": section(), "index": bytes(8)}):
        pass
    assert path.read_bytes()[12] == 3
    with CmfFile.open(path) as model:
        assert model.section("masks") == section() and model.section("index") == bytes(8)
        assert set(model.header["section_hashes"]) == {"masks", "index"}
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    with CmfFile.open(path) as model, pytest.raises(FormatError, match="section masks does not match"):
        model.section("masks")


# ── skills ──


@pytest.fixture
def skilled(write_cmf: Callable[..., Path]) -> Callable[..., CmfFile]:
    def write(skills: Any, tensors: dict[str, tuple[int, ...]]) -> CmfFile:
        arrays = {name: np.ones(shape, np.float32) for name, shape in {"w": (2, 3), **tensors}.items()}
        return CmfFile.open(write_cmf(arrays, Dtype.F32, header={"arch": {}, "skills": skills}))

    return write


def _skills(model: CmfFile) -> list[Any]:
    with model:
        return read_skills(model.header, model.tensors, "m")


def test_skills(skilled: Callable[..., CmfFile]) -> None:
    records = [{"id": "a", "name": "A", "quality": {"metric": "ppl"}}, {"id": "a.b"}]
    a, ab = _skills(skilled(records, {"skill.a.w": (2, 3), "skill.a.b.w": (2, 3)}))
    assert (a.id, a.name, a.tensors, a.nbytes) == ("a", "A", ("w",), 24)
    assert (ab.tensors, ab.quality) == (("w",), None)
    assert _skills(skilled(None, {})) == []


@pytest.mark.parametrize(
    ("records", "tensors", "message"),
    [
        ({}, {}, "skills is dict, expected a list"),
        ([3], {}, "skill 0 is not an object with an id"),
        ([{"id": ""}], {}, "skill 0 is not an object with an id"),
        ([{"id": "a"}, {"id": "a"}], {}, "skill 1 has the id 'a' of another"),
        ([{"id": "a", "base_dir_hash": "00"}], {}, "belongs to a base that is not in the file"),
        ([], {"skill.a.w": (2, 3)}, "tensor skill.a.w belongs to no skill"),
        ([{"id": "a"}], {"skill.a.v": (2, 3)}, "tensor skill.a.v replaces a tensor that the file lacks"),
        ([{"id": "a"}], {"skill.a.w": (3, 2)}, r"has shape \[3, 2\], what it replaces \[2, 3\]"),
    ],
)
def test_registries_that_are_refused(
    skilled: Callable[..., CmfFile], records: Any, tensors: Any, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        _skills(skilled(records, tensors))


def test_append_only_growth(write_cmf: Callable[..., Path], tmp_path: Path) -> None:
    """A skill appended as the specification says: new tensor, directory and header at the end, offsets changed in place."""
    old = write_cmf({"w": np.ones((2, 3), np.float32)}, tokenizer=b"{}")
    grown = write_cmf(
        {"w": np.ones((2, 3), np.float32), "skill.a.w": np.zeros((2, 3), np.float32)},
        header={"arch": {}, "skills": [{"id": "a"}]},
        name="grown.cmf",
    )
    data = bytearray(old.read_bytes())
    new = grown.read_bytes()
    data += bytes(-(len(data) - 4096) % 64)
    at = len(data) - 4096
    data += bytes(24)
    directory = bytearray(_bytes(new, 0x20))
    struct.pack_into("<Q", directory, 16 + 56 + 32, at)
    for place, part in ((0x20, bytes(directory)), (0x10, _bytes(new, 0x10))):
        struct.pack_into("<QQ", data, place, len(data), len(part))
        data += part
    struct.pack_into("<Q", data, 0x38, at + 24)
    data[0x70:0x80] = bytes(16)
    old.write_bytes(data)
    with CmfFile.open(old) as model:
        assert (
            model.array("skill.a.w").tolist() == [[0] * 3] * 2 and model.array("w").tolist() == [[1] * 3] * 2
        )
        assert model.tokenizer_json == b"{}"
        (skill,) = read_skills(model.header, model.tensors, "m")
        assert skill.tensors == ("w",)
        assert model.parts[0].unused_bytes > 0


def _bytes(data: bytes, place: int) -> bytes:
    offset, length = struct.unpack_from("<QQ", data, place)
    return data[offset : offset + length]
