"""The CMF container: exact bytes, round trips, and writers that fail without leaving a trace."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import FormatError, InputError, NvgpuError, OutputError
from nvgpu.formats.blr import BlrPath, BlrTensor
from nvgpu.formats.cmf import CmfFile, CmfWriter
from nvgpu.formats.codecs import Dtype, encode
from nvgpu.formats.hash64 import hash64

Write = Callable[..., Path]


def test_exact_bytes(write_cmf: Write) -> None:
    arrays = {"a": np.array([1.0, -2.5]), "bé": np.zeros((2, 3, 1))}
    data = write_cmf(arrays, tokenizer=b"{}").read_bytes()
    header = (
        b'{"arch":{},"format":"cmf","version":2,"section_hashes":{"vocab":"'
        + b"%016x" % hash64(b"{}")
        + b'"}}'
    )
    payloads = bytes.fromhex("0000803f 000020c0"), bytes(24)
    directory = struct.pack("<QQ", 2, 16 + 2 * 56)
    directory += struct.pack("<IHBB6IQQQ", 0, 1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 8, hash64(payloads[0]))
    directory += struct.pack("<IHBB6IQQQ", 1, 3, 0, 3, 2, 3, 1, 0, 0, 0, 64, 24, hash64(payloads[1]))
    directory += "abé".encode()
    envelope = struct.pack("<4sIII", b"CMF\x01", 2, 0, 1)
    at = 128 + len(header)
    envelope += struct.pack("<6Q", 128, len(header), at, len(directory), 4096, 88)
    envelope += struct.pack("<6Q", 0, 0, 4096 + 88, 2, 0, 0)
    envelope += struct.pack("<QQ", hash64(header), hash64(directory))
    expected = (envelope + header + directory).ljust(4096, b"\0") + payloads[0].ljust(64, b"\0") + payloads[1]
    assert data == expected + b"{}"


@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.F16, Dtype.BF16, Dtype.Q8_ROW, Dtype.Q8_2F])
def test_round_trip(write_cmf: Write, dtype: Dtype) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.standard_normal((i, 40)).astype(np.float32) for i in (1, 3, 17)}
    with CmfFile.open(write_cmf(arrays, dtype, header={"arch": {"hidden_size": 8}, "x": "é"})) as model:
        assert model.arch == {"hidden_size": 8}
        assert model.header["x"] == "é"
        assert model.tokenizer_json is None
        assert list(model.tensors) == list(arrays)
        for name, values in arrays.items():
            payload = encode(values, dtype, name)
            assert model.raw(name).tobytes() == payload.tobytes()
            assert not model.raw(name).flags.writeable
            assert model.tensors[name].hash == hash64(payload)
            assert model.array(name).shape == values.shape
            np.testing.assert_allclose(model.array(name), values, atol=0.03)


def test_feature_bits(write_cmf: Write) -> None:
    ones = {"w": np.ones((2, 8))}
    assert write_cmf(ones, Dtype.Q8_ROW).read_bytes()[12:16] == b"\1\0\0\0"
    assert write_cmf(ones, Dtype.Q8_2F).read_bytes()[12:16] == b"\5\0\0\0"


def _blr() -> BlrTensor:
    path = BlrPath(
        np.ones(3, np.float16), np.ones(8, np.float16), np.ones(16, np.float16),
        np.full((3, 1), 255, np.uint8), np.full((8, 2), 255, np.uint8),
    )  # fmt: skip
    return BlrTensor(3, 16, 8, (path,))


def test_blr_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.cmf"
    with CmfWriter(path, {"arch": {}}, [("w", Dtype.BLR, (3, 16))], None) as writer:
        writer.write("w", _blr().pack())
    with CmfFile.open(path) as model:
        assert np.array_equal(model.array("w"), np.full((3, 16), 8.0))
        assert BlrTensor.parse(model.raw("w"), "w").rank == 8
    with (
        pytest.raises(FormatError, match=r"tensor w: BLR payload is for shape \[3, 16\]"),
        CmfWriter(path, {"arch": {}}, [("w", Dtype.BLR, (16, 3))], None) as writer,
    ):
        writer.write("w", _blr().pack())


def test_payload_in_pieces_gives_the_same_file(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.float32)
    files = []
    for i, parts in enumerate(
        ([values], np.split(values, [1, 2, 500]), iter([values[:7].tobytes(), values[7:]]))
    ):
        path = tmp_path / f"{i}.cmf"
        with CmfWriter(path, {"arch": {}}, [("t", Dtype.F32, (1000,))], b"{}") as writer:
            writer.write("t", parts)
        files.append(path.read_bytes())
    assert files[0] == files[1] == files[2]


def test_content_key_follows_header_and_payload(write_cmf: Write) -> None:
    def key(value: float, name: str, **header: Any) -> str:
        with CmfFile.open(
            write_cmf({"t": np.array([value, 3.0])}, header={"arch": {}, **header}, name=name)
        ) as m:
            return m.content_key()

    first = key(1, "a.cmf")
    assert len(first) == 64 and first == key(1, "b.cmf")
    assert len({first, key(2, "c.cmf"), key(1, "d.cmf", provenance={"x": 1})}) == 3


def test_views_outlive_the_file(write_cmf: Write) -> None:
    model = CmfFile.open(write_cmf({"t": np.arange(4.0)}))
    view = model.raw("t")
    model.close()
    assert view.view(np.float32).tolist() == [0, 1, 2, 3]


def test_missing_tensor(write_cmf: Write) -> None:
    with (
        CmfFile.open(write_cmf({"t": np.ones(1)})) as model,
        pytest.raises(FormatError, match=r"m\.cmf: tensor u"),
    ):
        model.array("u")


def test_tokenizer_hash_is_checked(write_cmf: Write) -> None:
    path = write_cmf({"t": np.ones(1)}, tokenizer=b"{}")
    path.write_bytes(path.read_bytes()[:-1] + b"]")
    with (
        CmfFile.open(path) as model,
        pytest.raises(FormatError, match=r"m\.cmf: section vocab does not match"),
    ):
        _ = model.tokenizer_json


# ---- writers that fail ----


def _broken() -> Iterator[bytes]:
    yield bytes(4)
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("writes", "error"),
    [
        ([], OutputError),
        ([("a", bytes(4))], OutputError),
        ([("b", bytes(4))], OutputError),
        ([("a", bytes(4)), ("b", bytes(4)), ("c", b"")], OutputError),
        ([("a", bytes(3))], OutputError),
        ([("a", bytes(5))], OutputError),
        ([("a", _broken())], KeyboardInterrupt),
    ],
)
def test_failure_keeps_the_old_file(tmp_path: Path, writes: list[Any], error: type[BaseException]) -> None:
    path = tmp_path / "m.cmf"
    path.write_bytes(b"precious")
    entries = [("a", Dtype.F32, (1,)), ("b", Dtype.F32, (1,))]
    with pytest.raises(error), CmfWriter(path, {"arch": {}}, entries, None) as writer:
        for name, payload in writes:
            writer.write(name, payload)
    assert path.read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["m.cmf"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_keeps_the_old_file(
    write_cmf: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "m.cmf"
    path.write_bytes(b"precious")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OutputError, match=r"m\.cmf: cannot be written: no space left"):
        write_cmf({"t": np.ones(2)})
    assert path.read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["m.cmf"]


def test_writing_over_an_open_input(write_cmf: Write) -> None:
    path = write_cmf({"t": np.ones(2)})
    with CmfFile.open(path) as old:
        write_cmf({"t": np.zeros(2)})
        assert old.array("t").tolist() == [1, 1]
    with CmfFile.open(path) as new:
        assert new.array("t").tolist() == [0, 0]


def test_unwritable_places(write_cmf: Write, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=r"nowhere/m\.cmf: cannot be written"):
        write_cmf({"t": np.ones(2)}, name="nowhere/m.cmf")
    with pytest.raises(OutputError, match="folder: not a regular file"):
        write_cmf({"t": np.ones(2)}, name="folder")
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize(
    ("header", "entries", "message"),
    [
        ({"arch": {"x": float("nan")}}, [], "header cannot be written"),
        ({"arch": {"x": b""}}, [], "header cannot be written"),
        ({"arch": {}}, [("t", Dtype.F32, (1,))] * 2, "tensor t is listed twice"),
        ({"arch": {}}, [("t", Dtype.F32, (1,) * 7)], "at most 6 axes"),
        ({"arch": {}}, [("t", Dtype.F32, (1 << 32,))], "below 2\\^32"),
        ({"arch": {}}, [("t" * 65536, Dtype.F32, (1,))], "longer than 65535"),
        ({"arch": {}}, [("t", Dtype.Q8_ROW, (4,))], "expected two axes"),
    ],
)
def test_impossible_files(tmp_path: Path, header: Any, entries: Any, message: str) -> None:
    with pytest.raises(NvgpuError, match=message):
        CmfWriter(tmp_path / "m.cmf", header, entries, None)
    assert os.listdir(tmp_path) == []


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.cmf: no such file"):
        CmfFile.open(tmp_path / "gone.cmf")


def test_header_may_carry_unknown_keys(write_cmf: Write) -> None:
    path = write_cmf({"t": np.ones(1)}, header={"arch": {}, "future": [1, {"a": None}]})
    with CmfFile.open(path) as model:
        assert json.loads(json.dumps(model.header))["future"] == [1, {"a": None}]
