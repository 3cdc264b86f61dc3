"""The BLR payload: exact bytes, every sign position, the matrix it stands for, and every refusal."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import FormatError
from nvgpu.formats.blr import BlrPath, BlrTensor, pack_signs, unpack_signs

Array = np.ndarray[Any, Any]


def _random(m: int, n: int, r: int, paths: int, seed: int = 0) -> BlrTensor:
    rng = np.random.default_rng(seed)

    def scale(k: int) -> Array:
        return rng.standard_normal(k).astype(np.float16)

    def signs(rows: int, cols: int) -> Array:
        return rng.integers(0, 256, (rows, cols // 8), dtype=np.uint8)

    return BlrTensor(
        m, n, r,
        tuple(BlrPath(scale(m), scale(r), scale(n), signs(m, r), signs(r, n)) for _ in range(paths)),
    )  # fmt: skip


@pytest.mark.parametrize("width", [8, 32, 40, 64, 136])
@pytest.mark.parametrize("lone", [1.0, -1.0])
def test_every_single_sign_position(width: int, lone: float) -> None:
    signs = np.full((width, width), -lone)
    np.fill_diagonal(signs, lone)
    expected = np.zeros((width, width // 8), np.uint8)
    for i in range(width):
        expected[i, i // 8] = 1 << (i % 8)
    if lone < 0:
        expected = ~expected
    packed = pack_signs(signs)
    assert packed.dtype == np.uint8 and np.array_equal(packed, expected)
    assert np.array_equal(unpack_signs(packed), signs)


def test_zero_counts_as_plus() -> None:
    assert pack_signs(np.array([[0.0, -0.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0]])).tolist() == [[0b1011]]
    with pytest.raises(FormatError, match="multiple of 8"):
        pack_signs(np.ones((2, 12)))


def test_exact_bytes() -> None:
    path = BlrPath(
        h=np.array([1, -2], np.float16),
        l=np.array([0.5] * 8, np.float16),
        g=np.array([1] * 7 + [4], np.float16),
        u=np.array([[0xFF], [0x01]], np.uint8),
        v=np.arange(8, dtype=np.uint8)[:, None],
    )
    payload = BlrTensor(2, 8, 8, (path,)).pack()
    assert payload == bytes.fromhex(
        "4c010100 08000000 02000000 08000000"  # magic, version, paths, 0, r, m, n
        "003c 00c0"  # h
        "003c003c003c003c003c003c003c 0044"  # g
        "0038003800380038003800380038 0038"  # l
        "ff 01"  # u
        "0001020304050607"  # v
    )
    tensor = BlrTensor.parse(payload, "t", (2, 8))
    assert tensor.pack() == payload
    assert tensor.bits == 8 * (2 + 8) + 16 * (2 + 8 + 8) == 8 * (len(payload) - 16)
    assert tensor.bpw == tensor.bits / 16


@pytest.mark.parametrize("paths", [1, 2])
@pytest.mark.parametrize(("m", "n", "r"), [(1, 8, 8), (7, 40, 16), (24, 64, 136)])
def test_dense_is_the_formula(m: int, n: int, r: int, paths: int) -> None:
    tensor = BlrTensor.parse(_random(m, n, r, paths).pack(), "t")
    expected = np.zeros((m, n))
    for p in tensor.paths:
        u = np.unpackbits(p.u, axis=1, bitorder="little") * 2.0 - 1.0
        v = np.unpackbits(p.v, axis=1, bitorder="little") * 2.0 - 1.0
        h, middle, g = (np.diag(a.astype(np.float64)) for a in (p.h, p.l, p.g))
        expected += h @ u @ middle @ v @ g
    dense = tensor.dense()
    assert dense.dtype == np.float32 and dense.shape == (m, n)
    np.testing.assert_allclose(dense, expected, rtol=1e-5, atol=1e-4)
    assert len(tensor.pack()) == 16 + tensor.bits // 8


@pytest.mark.parametrize(
    ("offset", "form", "value", "message"),
    [
        (0, "B", 0x4D, "magic is 77, expected 0x4c"),
        (1, "B", 2, "version is 2, expected 1"),
        (2, "B", 0, "path count is 0, expected 1 to 2"),
        (2, "B", 3, "path count is 3"),
        (3, "B", 1, "reserved byte is 1"),
        (4, "I", 0, "rank is 0"),
        (4, "I", 12, "rank is 12, expected a positive multiple of 8"),
        (4, "I", 16, "bytes, expected"),
        (4, "I", 0xFFFFFFF8, "bytes, expected"),
        (8, "I", 0, "m is 0"),
        (8, "I", 5, "is for shape"),
        (12, "I", 12, "n is 12"),
        (12, "I", 0, "n is 0"),
    ],
)
def test_bad_header_fields(offset: int, form: str, value: int, message: str) -> None:
    payload = bytearray(_random(4, 16, 8, 1).pack())
    struct.pack_into("<" + form, payload, offset, value)
    with pytest.raises(FormatError, match=f"m.cmf: tensor x: .*{message}"):
        BlrTensor.parse(payload, "m.cmf: tensor x", (4, 16))


@pytest.mark.parametrize("length", [0, 1, 15, 16, 90])
def test_wrong_lengths(length: int) -> None:
    payload = _random(4, 16, 8, 1).pack()
    with pytest.raises(FormatError, match="x: BLR payload has"):
        BlrTensor.parse(payload[:length], "x")
    with pytest.raises(FormatError, match="x: BLR payload has"):
        BlrTensor.parse(payload + b"\0", "x")


def test_pack_refuses_parts_that_do_not_fit() -> None:
    good = _random(4, 16, 8, 1)
    (path,) = good.paths
    for bad in (
        replace(path, h=path.h.astype(np.float32)),
        replace(path, g=path.g[:-1]),
        replace(path, u=path.v),
    ):
        with pytest.raises(FormatError, match=r"BLR part [hgu] is"):
            BlrTensor(4, 16, 8, (bad,)).pack()
    with pytest.raises(FormatError, match="0 paths"):
        BlrTensor(4, 16, 8, ()).pack()
    with pytest.raises(FormatError, match="multiples of 8"):
        BlrTensor(4, 16, 12, (path,)).pack()
