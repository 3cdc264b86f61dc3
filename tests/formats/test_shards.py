"""Models in several files: what each holds, opening by any of them, and sets that do not belong together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import FormatError, OutputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.cmf_writer import model_writer
from nvgpu.formats.codecs import Dtype, encode

ARRAYS = {f"t{i}": np.full((4, 32), i, np.float32) for i in range(5)}
HEADER = {
    "arch": {"hidden_size": 8},
    "tokenizer_config": {"eos_token_ids": [1]},
    "hf": {"config": {}},
    "skills": [],
}
NAMES = [f"m-{i:05}-of-00003.cmf" for i in (1, 2, 3)]


def write(
    folder: Path,
    arrays: dict[str, Any] = ARRAYS,
    most: int = 1024,
    header: dict[str, Any] = HEADER,
    **kwargs: Any,
) -> list[Path]:
    """A set of f32 tensors of 512 bytes each in shards of at most `most` bytes."""
    folder.mkdir(exist_ok=True)
    entries = [(name, Dtype.F32, value.shape) for name, value in arrays.items()]
    writer = model_writer(folder / "m.cmf", header, entries, b'{"a": 1}', shard_bytes=most, **kwargs)
    with writer:
        for name, value in arrays.items():
            writer.write(name, encode(value, Dtype.F32, name))
    return writer.paths


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    offset, length = (int.from_bytes(data[i : i + 8], "little") for i in (0x10, 0x18))
    header: dict[str, Any] = json.loads(data[offset : offset + length])
    return header


def test_every_shard_is_a_file_of_its_own(tmp_path: Path) -> None:
    paths = write(tmp_path, sections={"index": b"\0" * 8})
    assert [p.name for p in paths] == NAMES
    headers = [header_of(p) for p in paths]
    assert [{k: h["shard"][k] for k in ("no", "count")} for h in headers] == [
        {"no": i, "count": 3} for i in (1, 2, 3)
    ]
    assert len({h["shard"]["id"] for h in headers}) == 1 and headers[0]["shard"]["id"] != "0" * 16
    assert headers[0]["tokenizer_config"] == {"eos_token_ids": [1]} and "hf" in headers[0]
    for h in headers[1:]:
        assert h["arch"] == headers[0]["arch"] and h["tokenizer_config"] is None
        assert "hf" not in h and "skills" not in h and h["section_hashes"] == {}
    for no, path in enumerate(paths):
        with CmfFile.open(path) as model:
            part = model.parts[no]
            assert list(part.tensors) == [["t0", "t1"], ["t2", "t3"], ["t4"]][no]
            assert bool(part.section("vocab")) == bool(part.section("index")) == (no == 0)
            assert sum(e.nbytes for e in part.tensors.values()) <= 1024


@pytest.mark.parametrize("opened", NAMES)
def test_any_shard_opens_the_set(tmp_path: Path, opened: str) -> None:
    write(tmp_path)
    with CmfFile.open(tmp_path / opened) as model:
        assert list(model.tensors) == list(ARRAYS)
        assert model.tokenizer_json == b'{"a": 1}'
        assert "shard" not in model.header and model.arch == {"hidden_size": 8}
        assert [p.name for p in model.paths] == NAMES
        for name, value in ARRAYS.items():
            assert model.array(name).tolist() == value.tolist()
            assert model.rows(name, 1, 2).tolist() == value[1:2].tolist()


def test_keys_are_the_same_whatever_was_opened(tmp_path: Path) -> None:
    write(tmp_path)
    keys = set()
    for name in NAMES:
        with CmfFile.open(tmp_path / name) as model:
            keys.add(model.content_key())
    assert len(keys) == 1


def test_one_shard_is_an_ordinary_file(tmp_path: Path) -> None:
    (path,) = write(tmp_path, most=1 << 20)
    assert path.name == "m.cmf" and "shard" not in header_of(path)


def test_a_tensor_larger_than_a_shard(tmp_path: Path) -> None:
    assert len(write(tmp_path, most=100)) == 5


def test_too_many_shards(tmp_path: Path) -> None:
    entries = [(f"t{i}", Dtype.F32, (1,)) for i in range(100_000)]
    with pytest.raises(OutputError, match="100000 shards, expected at most 99999"):
        model_writer(tmp_path / "m.cmf", HEADER, entries, None, shard_bytes=1)


def test_failure_leaves_no_shard(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="t4 was not written"):
        entries = [(name, Dtype.F32, value.shape) for name, value in ARRAYS.items()]
        with model_writer(tmp_path / "m.cmf", HEADER, entries, None, shard_bytes=1024) as writer:
            for name in list(ARRAYS)[:4]:
                writer.write(name, ARRAYS[name])
    assert list(tmp_path.iterdir()) == []


# ── sets that are no sets ──


def refused(path: Path, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        CmfFile.open(path)


def test_missing_shards(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / NAMES[1]).unlink()
    refused(tmp_path / NAMES[0], rf"{NAMES[1]}: missing; {NAMES[0]} is shard 1 of 3")
    (tmp_path / NAMES[0]).unlink()
    refused(tmp_path / NAMES[2], rf"{NAMES[0]} and 1 more: missing")


def test_a_renamed_shard(tmp_path: Path) -> None:
    write(tmp_path)
    shutil.move(tmp_path / NAMES[1], tmp_path / "part2.cmf")
    refused(tmp_path / "part2.cmf", "says shard 2 of 3, expected a name that ends with -00002-of-00003.cmf")


def test_a_shard_twice(tmp_path: Path) -> None:
    write(tmp_path)
    shutil.copy(tmp_path / NAMES[0], tmp_path / NAMES[1])
    refused(tmp_path / NAMES[2], rf"{NAMES[1]}: its header says shard 1 of 3, expected shard 2 of 3")


def test_shards_of_another_count(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path / "other", most=512)
    shutil.copy(tmp_path / "other" / "m-00002-of-00005.cmf", tmp_path / NAMES[1])
    refused(tmp_path / NAMES[0], "says shard 2 of 5, expected shard 2 of 3")


def test_a_shard_of_another_run(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path / "other", {name: value + 1 for name, value in ARRAYS.items()})
    shutil.copy(tmp_path / "other" / NAMES[2], tmp_path / NAMES[2])
    refused(tmp_path / NAMES[0], rf"{NAMES[2]}: belongs to another model than {NAMES[0]}")


def test_a_shard_of_another_architecture(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path / "other", header={**HEADER, "arch": {"hidden_size": 16}})
    shutil.copy(tmp_path / "other" / NAMES[1], tmp_path / NAMES[1])
    refused(tmp_path / NAMES[0], "belongs to another model")


def test_an_ordinary_file_in_a_set(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path / "other", most=1 << 20)
    shutil.copy(tmp_path / "other" / "m.cmf", tmp_path / NAMES[1])
    refused(tmp_path / NAMES[0], "says no shard, expected shard 2 of 3")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    """Files of other writers carry no id: the directories must still not contradict each other."""
    write(tmp_path)
    write(tmp_path / "other", dict(reversed(ARRAYS.items())))
    for folder in (tmp_path, tmp_path / "other"):
        for name in NAMES:
            _drop_id(folder / name)
    shutil.copy(tmp_path / "other" / NAMES[2], tmp_path / NAMES[2])
    refused(tmp_path / NAMES[0], rf"{NAMES[2]}: tensor t0 stands in {NAMES[0]} too")


def _drop_id(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0x70:0x78] = bytes(8)
    at = data.index(b',"id":"')
    data[at : at + len(b',"id":"') + 17] = b" " * (len(b',"id":"') + 17)
    path.write_bytes(data)


def test_a_damaged_sibling_is_named(tmp_path: Path) -> None:
    paths = write(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    refused(paths[0], rf"{NAMES[2]}: section data spans")
