"""Codecs: exact bytes from hand-computed vectors, bounds of the round trip, refusals."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import FormatError, InputError
from nvgpu.formats.codecs import ENCODED, Dtype, decode, dtype_by_name, encode, nbytes

Array = np.ndarray[Any, Any]


def _encoded(values: object, dtype: Dtype) -> bytes:
    return encode(np.array(values, np.float32), dtype, "t").tobytes()


def test_ids_are_those_of_the_format() -> None:
    ids = {d.label: int(d) for d in Dtype}
    assert ids == {
        "f32": 0, "f16": 1, "bf16": 2, "q8_row": 3, "q4_block": 4, "vbit": 8, "q8_2f": 9, "vbit_ro": 10,
        "q4_tiled": 11, "q1": 12, "q1s": 13, "q1t": 14, "q4tp": 15, "blr": 19,
    }  # fmt: skip


def test_f32_bytes() -> None:
    assert _encoded([1.0, -2.5], Dtype.F32) == bytes.fromhex("0000803f 000020c0")


@pytest.mark.parametrize(
    ("value", "half"),
    [
        (1.0, 0x3C00),
        (-2.0, 0xC000),
        (-0.0, 0x8000),
        (65504.0, 0x7BFF),
        (65519.0, 0x7BFF),  # below the middle to infinity
        (2.0**-24, 0x0001),
        (2.0**-25, 0x0000),  # a tie, to even
        (3 * 2.0**-25, 0x0002),  # a tie, to even
        (1 + 2.0**-11, 0x3C00),  # a tie, to even
        (1 + 3 * 2.0**-11, 0x3C02),  # a tie, to even
        (1 + 2.0**-11 + 2.0**-20, 0x3C01),
    ],
)
def test_f16_bytes(value: float, half: int) -> None:
    assert _encoded([value], Dtype.F16) == struct.pack("<H", half)


@pytest.mark.parametrize(
    ("value", "half"),
    [
        (1.0, 0x3F80),
        (-0.0, 0x8000),
        (1 + 2.0**-8, 0x3F80),  # a tie, to even
        (1 + 3 * 2.0**-8, 0x3F82),  # a tie, to even
        (1 + 2.0**-8 + 2.0**-20, 0x3F81),
        (2.0**-133, 0x0001),
        (3.3895313892515355e38, 0x7F7F),
    ],
)
def test_bf16_bytes(value: float, half: int) -> None:
    assert _encoded([value], Dtype.BF16) == struct.pack("<H", half)


def test_q8_row_bytes() -> None:
    payload = _encoded([[127.0, -127.0, 0.5, 1.5], [0.0, 0.0, 0.0, 0.0]], Dtype.Q8_ROW)
    assert payload == bytes.fromhex("7f810002 00000000 003c 0000")  # halves to even; a zero row has scale 0


def test_q8_2f_bytes() -> None:
    assert _encoded([[127.0]], Dtype.Q8_2F) == bytes.fromhex("7f 003c 003c")
    payload = bytes([1, 0xFE, 3, 127]) + np.array([1, 2, 0.5, 4], "<f2").tobytes()
    assert decode(payload, Dtype.Q8_2F, (2, 2), "t").tolist() == [[0.5, -8.0], [3.0, 1016.0]]


@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.F16, Dtype.BF16])
def test_every_half_survives(dtype: Dtype) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = bits.view(np.float16).astype(np.float32) if dtype == Dtype.F16 else _from_bf16(bits)
    values = values[np.isfinite(values)]
    back = decode(encode(values, dtype, "t"), dtype, values.shape, "t")
    assert back.tobytes() == values.tobytes()


def _from_bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _matrices() -> dict[str, Array]:
    rng = np.random.default_rng(3)
    plain = rng.standard_normal((33, 70)).astype(np.float32)
    outliers = plain.copy()
    outliers[:, ::11] *= 40
    holes = plain.copy()
    holes[4], holes[:, 9] = 0, 0
    spread = plain * np.exp(3 * rng.standard_normal(70)).astype(np.float32)
    return {
        "plain": plain,
        "outlier columns": outliers,
        "zero row and column": holes,
        "spread columns": spread,
        "tiny": plain * np.float32(1e-5),
        "zero": np.zeros((5, 6), np.float32),
        "one row": plain[:1],
        "one column": plain[:, :1],
        "one huge row": np.concatenate([plain * np.float32(1e-6), plain[:1] * np.float32(1e3)]),
    }


def _steps(payload: Array, dtype: Dtype, shape: tuple[int, int]) -> Array:
    rows, cols = shape
    scales = payload[rows * cols :].view("<f2").astype(np.float64)
    col = scales[rows:] if dtype == Dtype.Q8_2F else np.ones(cols)
    return scales[:rows, None] * col


@pytest.mark.parametrize("name", list(_matrices()))
@pytest.mark.parametrize("dtype", [Dtype.Q8_ROW, Dtype.Q8_2F])
def test_q8_stays_within_half_a_step(name: str, dtype: Dtype) -> None:
    w = _matrices()[name]
    payload = encode(w, dtype, "t")
    assert len(payload) == nbytes(dtype, w.shape, "t")
    back = decode(payload, dtype, w.shape, "t")
    steps = _steps(payload, dtype, w.shape)
    assert (np.abs(back - w) <= 0.5 * steps * (1 + 1e-5) + 1e-30).all()
    assert (back[w == 0] == 0).all()


@pytest.mark.parametrize("name", list(_matrices()))
def test_two_fields_never_lose_to_one(name: str) -> None:
    w = _matrices()[name]
    total = {d: np.square(_steps(encode(w, d, "t"), d, w.shape)).sum() for d in (Dtype.Q8_ROW, Dtype.Q8_2F)}
    assert total[Dtype.Q8_2F] <= total[Dtype.Q8_ROW] * (1 + 5e-3)  # f16 rounds two fields, not one


def test_two_fields_win_on_outlier_columns() -> None:
    w = _matrices()["outlier columns"]
    error = {
        d: np.square(decode(encode(w, d, "t"), d, w.shape, "t") - w).sum()
        for d in (Dtype.Q8_ROW, Dtype.Q8_2F)
    }
    assert error[Dtype.Q8_2F] < 0.1 * error[Dtype.Q8_ROW]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(Dtype.F16, 65520.0), (Dtype.BF16, 3.4e38), (Dtype.Q8_ROW, 1e7), (Dtype.Q8_2F, 1e13)],
)
def test_overflow_names_the_tensor(dtype: Dtype, value: float) -> None:
    with pytest.raises(InputError, match=rf"model\.x: largest magnitude .* {dtype.label}"):
        encode(np.full((2, 8), value, np.float32), dtype, "model.x")


@pytest.mark.parametrize("dtype", ENCODED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused(dtype: Dtype, value: float) -> None:
    w = np.ones((2, 32), np.float32)
    w[1, 3] = value
    with pytest.raises(InputError, match="tensor t: holds infinite or NaN"):
        encode(w, dtype, "t")


def test_wrong_axes_sizes_and_names() -> None:
    with pytest.raises(InputError, match=r"tensor t: q8_row with shape \[3\]"):
        encode(np.ones(3, np.float32), Dtype.Q8_ROW, "t")
    with pytest.raises(FormatError, match=r"x: blr with shape \[8\]"):
        nbytes(Dtype.BLR, (8,), "x")
    with pytest.raises(FormatError, match="x: payload of 7 bytes, expected 8"):
        decode(bytes(7), Dtype.F32, (2,), "x")
    with pytest.raises(
        InputError, match="dtype 'q3': unknown, expected one of f32, f16, bf16, q8_row, q4_block"
    ):
        dtype_by_name("q3")
