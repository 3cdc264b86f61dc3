"""The quantised types: exact bytes from hand-computed vectors, derived error bounds, every bit position, single rows."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import FormatError, InputError
from nvgpu.formats.blr import BlrPath, BlrTensor, pack_signs, unpack_signs
from nvgpu.formats.codecs import (
    CODECS,
    ENCODED,
    Dtype,
    check_payload,
    decode,
    decode_rows,
    dtype_by_name,
    encode,
    fitting,
    is_finite,
    size_bound,
)
from nvgpu.formats.quant.q1 import KEPT
from nvgpu.formats.quant.q4 import ladders, pack_codes, unpack_codes
from nvgpu.formats.quant.vbit import MEAN_WIDTH, row_widths
from tests.formats.codec_bounds import bound

Array = np.ndarray[Any, Any]

GROUPED = (Dtype.VBIT, Dtype.VBIT_RO, Dtype.Q4_TILED, Dtype.Q1, Dtype.Q1S, Dtype.Q1T, Dtype.Q4TP)


def half(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}e", *values)


def _blr(rows: int, cols: int) -> bytes:
    rng = np.random.default_rng(rows)
    scales = [np.exp2(rng.integers(-3, 3, n)).astype(np.float16) for n in (rows, 16, cols)]
    signs = pack_signs(rng.standard_normal((rows, 16))), pack_signs(rng.standard_normal((16, cols)))
    return BlrTensor(rows, cols, 16, (BlrPath(scales[0], scales[1], scales[2], *signs),) * 2).pack()


def _payload(dtype: Dtype, w: Array) -> bytes:
    """A payload of `w` in a type that has an encoder; one of the same shape in the others."""
    if dtype == Dtype.BLR:
        return _blr(*w.shape)
    if dtype == Dtype.VBIT:
        data = encode(w, Dtype.VBIT_RO, "t").tobytes()
        head = w.shape[0] + w.size // 16
        return data[:head] + data[head + 4 * (len(w) + 1) :]
    if dtype == Dtype.Q1S:
        exact = struct.pack("<IIeIe", 2, 3, 0.5, w.size - 1, -8.0)
        return encode(w, Dtype.Q1, "t").tobytes() + exact
    return encode(w, dtype, "t").tobytes()


# ── exact bytes ──

RAMP = np.arange(32, dtype=np.float32).clip(0, 14) - 7  # -7 … 7, then sevens
NIBBLES = bytes(a | b << 4 for a, b in np.arange(32).clip(0, 14).reshape(16, 2) + 1)


def test_q4_block_bytes() -> None:
    w = np.concatenate([RAMP, RAMP * 2, [-0.5, 0.25]]).astype(
        np.float32
    )  # the last group is filled with zeros
    last = bytes([0x10 * 12 + 1, *[0x88] * 15])  # -7 and 3.5, a tie to even, in steps of 0.5/7
    scale = half(0.5 / 7)
    assert encode(w, Dtype.Q4_BLOCK, "t").tobytes() == NIBBLES * 2 + last + half(1, 2) + scale
    back = decode(NIBBLES * 2 + last + half(1, 2) + scale, Dtype.Q4_BLOCK, (66,), "t")
    assert back[:32].tolist() == RAMP.tolist() and back[32:64].tolist() == (RAMP * 2).tolist()
    assert back[64:] == pytest.approx([-0.5, 2 / 7], rel=1e-3)


def test_q4_tiled_bytes() -> None:
    w = np.stack([RAMP, RAMP * -2])
    other = bytes(16 - a | (16 - b) << 4 for a, b in zip(NIBBLES_LOW, NIBBLES_HIGH, strict=True))
    assert encode(w, Dtype.Q4_TILED, "t").tobytes() == half(1) + NIBBLES + half(2) + other
    assert decode(half(1) + NIBBLES + half(2) + other, Dtype.Q4_TILED, (2, 32), "t").tolist() == w.tolist()


NIBBLES_LOW = [b & 15 for b in NIBBLES]
NIBBLES_HIGH = [b >> 4 for b in NIBBLES]


def test_q4tp_bytes() -> None:
    """Scales 1 and 2^31 of row 0: lo 0, step 1, codes 0 and 31; row 1 has one scale."""
    w = np.stack([np.concatenate([RAMP, RAMP * 2.0**31]), np.concatenate([RAMP * 0.5, RAMP * 0])])
    zeros = bytes([0x88] * 16)
    payload = NIBBLES * 3 + zeros + half(0, 1, -1, 0) + bytes([0xE0, 3, 0, 0])
    assert encode(w.astype(np.float32), Dtype.Q4TP, "t").tobytes() == payload
    assert decode(payload, Dtype.Q4TP, (2, 64), "t").tolist() == w.tolist()


def test_vbit_bytes() -> None:
    """Row 0 has 3 bits (L = 3), row 1 has 8 (L = 127): scale 1 each."""
    small = np.array([-3, -2, -1, 0, 1, 2, 3, 3] * 4)
    large = np.array([-127, 127, 0, 1] * 8)
    codes = bytes([0b00000101, 0b00111001, 0b01110110]) * 4 + bytes([0, 254, 127, 128]) * 8
    head = bytes([3, 8]) + half(1, 1)
    w = [small.tolist(), large.tolist()]
    assert decode(head + codes, Dtype.VBIT, (2, 32), "t").tolist() == w
    table = struct.pack("<3I", 0, 12, 44)
    assert decode(head + table + codes, Dtype.VBIT_RO, (2, 32), "t").tolist() == w


def test_vbit_ro_bytes() -> None:
    w = np.tile(np.array([-7, 7, 0, 3], np.float32), (2, 8))
    row = bytes([0x0E, 0x7A]) * 8  # 4 bits, L = 7: codes 0, 14, 7, 10
    expected = bytes([4, 4]) + half(1, 1) + struct.pack("<3I", 0, 16, 32) + row * 2
    assert encode(w, Dtype.VBIT_RO, "t").tobytes() == expected


def test_q1_bytes() -> None:
    w = np.full((1, 32), -2, np.float32)
    w[0, [0, 9, 31]] = 2
    assert encode(w, Dtype.Q1, "t").tobytes() == half(2) + bytes([1, 2, 0, 128])
    assert decode(half(2) + bytes([1, 2, 0, 128]), Dtype.Q1, (1, 32), "t").tolist() == w.tolist()
    zero = half(0) + bytes([255] * 4)  # the sign of 0 is +1
    assert encode(np.zeros((1, 32), np.float32), Dtype.Q1, "t").tobytes() == zero


def test_q1s_values() -> None:
    payload = half(2) + bytes(4) + struct.pack("<IIeIe", 2, 3, 0.5, 31, -8.0)
    back = decode(payload, Dtype.Q1S, (1, 32), "t")
    assert back[0, [3, 31]].tolist() == [0.5, -8.0]
    assert set(back[0, [i for i in range(31) if i != 3]].tolist()) == {-2.0}


def test_q1t_bytes() -> None:
    w = np.zeros((1, 32), np.float32)
    w[0, [0, 6, 31]] = 3, -3, 3
    codes = bytes([1, 2 * 3, 0, 0, 0, 0, 3])  # digits 1 of byte 0, 2 of place 1, 1 of place 1
    payload = half(3) + codes + struct.pack("<2I", 0, 0)
    assert encode(w, Dtype.Q1T, "t").tobytes() == payload
    assert decode(payload, Dtype.Q1T, (1, 32), "t").tolist() == w.tolist()
    exact = half(3) + codes + struct.pack("<2IHeHe", 0, 2, 1, 0.25, 30, -9.0)
    w[0, [1, 30]] = 0.25, -9
    assert decode(exact, Dtype.Q1T, (1, 32), "t").tolist() == w.tolist()


def test_q1t_keeps_outliers_apart() -> None:
    w = np.full((4, 64), 0.5, np.float32)
    w[1, 5], w[3, 63] = 100, -50  # 1 % of 256 weights are 2
    payload = encode(w, Dtype.Q1T, "t").tobytes()
    assert payload[:9] == half(0.5) + bytes([121] * 6 + [4])
    assert payload[8 * 9 :] == struct.pack("<5IHeHe", 0, 0, 1, 1, 2, 5, 100.0, 63, -50.0)
    assert payload[9 * 2 + 2 + 1] == 121 - 1  # the digit of an exact weight is 0
    assert decode(payload, Dtype.Q1T, w.shape, "t").tolist() == w.tolist()


# ── bounds ──


def _matrices() -> dict[str, Array]:
    rng = np.random.default_rng(3)
    plain = rng.standard_normal((33, 96)).astype(np.float32)
    spread = plain * np.exp(3 * rng.standard_normal((33, 1))).astype(np.float32)
    holes = plain.copy()
    holes[4], holes[:, 32:64], holes[:, 9] = 0, 0, 0
    outliers = plain.copy()
    outliers[rng.random(plain.shape) < 0.02] *= 40
    return {
        "plain": plain,
        "spread rows": spread,
        "spread groups": (plain.reshape(33, 3, 32) * [[[1e-3], [1], [300]]])
        .reshape(33, 96)
        .astype(np.float32),
        "zero row, group and column": holes,
        "outliers": outliers,
        "tiny": plain * np.float32(1e-6),
        "zero": np.zeros((5, 64), np.float32),
        "one group": plain[:1, :32].copy(),
        "one magnitude": np.sign(plain) * np.float32(0.3),
        "large": plain * np.float32(5000),
        "many threads": rng.standard_normal((1100, 512)).astype(np.float32),
    }


MATRICES = _matrices()


@pytest.mark.parametrize("name", list(MATRICES))
@pytest.mark.parametrize("dtype", ENCODED, ids=lambda d: d.label)
def test_round_trip_stays_within_its_bound(name: str, dtype: Dtype) -> None:
    w = MATRICES[name]
    payload = encode(w, dtype, "t")
    assert len(payload) <= size_bound(dtype, w.shape)
    check_payload(payload, dtype, w.shape, "t")
    assert is_finite(payload, dtype, w.shape)
    error = np.abs(decode(payload, dtype, w.shape, "t").astype(np.float64) - w)
    worst = error - bound(w, payload, dtype)
    assert worst.max() <= 0, f"weight {np.unravel_index(worst.argmax(), w.shape)}"


def test_equal_input_gives_equal_bytes() -> None:
    w = MATRICES["many threads"]
    for dtype in ENCODED:
        assert encode(w, dtype, "t").tobytes() == encode(w.copy(), dtype, "t").tobytes()


@pytest.mark.parametrize("name", ["plain", "spread groups", "outliers", "large", "tiny"])
def test_ladders_cost_little(name: str) -> None:
    """32 rungs over a row's scales, searched for the least error, against one exact scale a group."""
    w = MATRICES[name]
    error = {
        d: np.square(decode(encode(w, d, "t"), d, w.shape, "t") - w.astype(np.float64)).sum()
        for d in (Dtype.Q4_TILED, Dtype.Q4TP)
    }
    assert error[Dtype.Q4TP] <= 1.05 * error[Dtype.Q4_TILED]


def test_rungs_are_one_product_after_another() -> None:
    lo, step = np.float16(-3.3), np.float16(0.217)
    expected = [np.float32(2.0 ** float(lo))]
    for _ in range(31):
        expected.append(expected[-1] * np.float32(2.0 ** float(step)))
    assert ladders(np.array([[lo, step]], np.float32))[0].tolist() == [float(x) for x in expected]


def test_row_widths_keep_the_budget() -> None:
    rng = np.random.default_rng(5)
    for spread in (0.0, 0.3, 1.0, 4.0, 30.0):
        widths = row_widths(np.exp2(spread * rng.standard_normal(200)))
        assert widths.mean() <= MEAN_WIDTH
        assert set(widths.tolist()) <= {3, 4, 5, 6, 8}
    assert row_widths(np.array([0.0, 0.0])).tolist() == [3, 3]
    loud = row_widths(np.array([1.0, 1.0, 1.0, 16.0]))
    assert loud[3] > loud[0] and loud.mean() <= MEAN_WIDTH


def test_best_ternary_support_is_the_best_of_all() -> None:
    """Against trying every support size and its best scale, group by group."""
    w = MATRICES["plain"] * np.float32(0.1)
    w = w[:, :32]  # too few weights for more than 10 exact ones; those are left out below
    payload = encode(w, Dtype.Q1T, "t")
    back = decode(payload, Dtype.Q1T, w.shape, "t").astype(np.float64)
    exact = np.abs(w) > np.sort(np.abs(w).reshape(-1))[-int(w.size * KEPT) - 1]
    for row, kept, decoded in zip(w.astype(np.float64), exact, back, strict=True):
        falling = np.sort(np.abs(row[~kept]))[::-1]
        best = min(
            np.square(falling[:k] - falling[:k].mean()).sum() + np.square(falling[k:]).sum()
            for k in range(1, len(falling) + 1)
        )
        assert np.square(row - decoded)[~kept].sum() <= best * (1 + 1e-4)


# ── every position of every packing ──


@pytest.mark.parametrize("width", [8, 32, 40, 64, 136])
@pytest.mark.parametrize("one", [1.0, -1.0])
def test_blr_signs(width: int, one: float) -> None:
    signs = np.where(np.eye(width, dtype=bool), one, -one)
    packed = pack_signs(signs)
    for i, row in enumerate(packed):
        number = int.from_bytes(row.tobytes(), "little")
        assert number == (1 << i if one > 0 else (1 << width) - 1 - (1 << i))
    assert unpack_signs(packed).tolist() == signs.tolist()


@pytest.mark.parametrize("width", [32, 64, 160])
@pytest.mark.parametrize("one", [1.0, -1.0])
def test_q1_signs(width: int, one: float) -> None:
    w = np.where(np.eye(width, dtype=bool), one, -one).astype(np.float32)
    payload = encode(w, Dtype.Q1, "t")
    assert decode(payload, Dtype.Q1, w.shape, "t").tolist() == w.tolist()
    bits = payload.reshape(width, -1, 6)[:, :, 2:].reshape(width, -1)
    assert bits.tobytes() == pack_signs(w).tobytes()


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_q1t_digits(value: float) -> None:
    w = np.zeros((64, 64), np.float32)
    np.fill_diagonal(w, value)
    payload = encode(w, Dtype.Q1T, "t")
    assert decode(payload, Dtype.Q1T, w.shape, "t").tolist() == w.tolist()
    tiles = payload[: 128 * 9].reshape(64, 2, 9)
    for i in range(64):
        digits = [0] * 7
        digits[i % 32 // 5] = (1 if value > 0 else 2) * 3 ** (i % 32 % 5)
        assert tiles[i, i // 32, 2:].tolist() == digits


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 8])
def test_vbit_codes(bits: int) -> None:
    """Each code in turn at each place of a row."""
    level = 2 ** (bits - 1) - 1
    for code in range(2**bits):
        codes = np.where(np.eye(32, dtype=bool), code, level)
        text = ["".join(format(c, f"0{bits}b") for c in row) for row in codes]
        packed = b"".join(int(t, 2).to_bytes(4 * bits, "big") for t in text)
        payload = bytes([bits] * 32) + half(*[1.0] * 32) + packed
        back = decode(payload, Dtype.VBIT, (32, 32), "t")
        assert back.tolist() == (codes - level).tolist()


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 8])
def test_vbit_ro_encodes_what_it_decodes(bits: int) -> None:
    """A matrix of one width (the others' rows are the budget's): codes survive at every place."""
    level = 2 ** (bits - 1) - 1
    rng = np.random.default_rng(bits)
    row = rng.integers(-level, level + 1, (1, 64)).astype(np.float32)
    row[0, [0, 32]] = level
    quiet = np.zeros((64, 64), np.float32)
    quiet[:, ::2] = 2.0**-20 * np.float32(7)
    w = np.concatenate([row, quiet]) if bits > 4 else np.repeat(row, 2, axis=0)
    payload = encode(w, Dtype.VBIT_RO, "t")
    width = payload[0]
    assert width == 4 if bits <= 4 else width >= bits
    if width == bits:
        assert decode(payload, Dtype.VBIT_RO, w.shape, "t")[0].tolist() == row[0].tolist()


@pytest.mark.parametrize("groups", [1, 2, 3, 7, 8, 9, 17])
def test_q4tp_codes(groups: int) -> None:
    codes = np.where(np.eye(groups, dtype=bool)[:, None], np.arange(32)[:, None], 0).reshape(-1, groups)
    codes = codes.astype(np.uint8)
    packed = pack_codes(codes)
    assert packed.shape[1] == -(-5 * groups // 8)
    assert unpack_codes(packed, groups).tolist() == codes.tolist()
    for row, data in zip(codes, packed, strict=True):
        assert int.from_bytes(data.tobytes(), "little") == sum(int(c) << 5 * i for i, c in enumerate(row))


@pytest.mark.parametrize("dtype", [Dtype.Q4_BLOCK, Dtype.Q4_TILED], ids=lambda d: d.label)
def test_nibbles(dtype: Dtype) -> None:
    """Each nibble at each of 32 places."""
    for nibble in range(16):
        values = np.where(np.eye(32, dtype=bool), nibble, 8)
        tiles = [bytes(a | b << 4 for a, b in row.reshape(16, 2)) for row in values]
        one = half(1)
        payload = b"".join(tiles) + one * 32 if dtype == Dtype.Q4_BLOCK else b"".join(one + t for t in tiles)
        assert decode(payload, dtype, (32, 32), "t").tolist() == (values - 8).tolist()


# ── single rows ──


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda d: d.label)
def test_rows_are_those_of_the_whole(dtype: Dtype) -> None:
    w = MATRICES["spread rows"]
    payload = _payload(dtype, w)
    whole = decode(payload, dtype, w.shape, "t")
    for begin, end in ((0, 1), (5, 9), (32, 33), (0, 33), (7, 7)):
        rows = decode_rows(payload, dtype, w.shape, begin, end, "t")
        np.testing.assert_array_equal(rows, whole[begin:end])


def test_rows_of_groups_that_cross_them() -> None:
    w = np.random.default_rng(0).standard_normal((7, 5, 9)).astype(np.float32)
    payload = encode(w, Dtype.Q4_BLOCK, "t")
    whole = decode(payload, Dtype.Q4_BLOCK, w.shape, "t").reshape(7, 45)
    for begin in range(7):
        for end in range(begin, 8):
            rows = decode_rows(payload, Dtype.Q4_BLOCK, w.shape, begin, end, "t")
            np.testing.assert_array_equal(rows, whole[begin:end])


# ── what is refused ──


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda d: d.label)
def test_a_byte_more_or_less_is_refused(dtype: Dtype) -> None:
    w = MATRICES["plain"]
    payload = _payload(dtype, w)
    check_payload(payload, dtype, w.shape, "t")
    for damaged in (payload[:-1], payload + b"\0", payload[: len(payload) // 2], b""):
        with pytest.raises(FormatError, match="^t: "):
            decode(damaged, dtype, w.shape, "t")


@pytest.mark.parametrize("dtype", GROUPED, ids=lambda d: d.label)
@pytest.mark.parametrize("shape", [(32,), (4, 33), (4, 0), (0, 32), (2, 2, 32)])
def test_shapes_without_whole_groups(dtype: Dtype, shape: tuple[int, ...]) -> None:
    with pytest.raises(FormatError, match=f"t: {dtype.label} with shape"):
        decode(b"", dtype, shape, "t")
    if dtype in ENCODED:
        with pytest.raises(InputError, match=f"tensor t: {dtype.label} with shape"):
            encode(np.zeros(shape, np.float32), dtype, "t")
    if len(shape) == 2:
        assert fitting(dtype, shape) == Dtype.Q8_2F


def test_fitting_keeps_what_fits() -> None:
    assert fitting(Dtype.Q4TP, (2, 64)) == Dtype.Q4TP
    assert fitting(Dtype.Q4_BLOCK, (2, 33)) == Dtype.Q4_BLOCK
    assert fitting(Dtype.Q1T, (1, 1 << 16)) == Dtype.Q1T and fitting(Dtype.Q1T, (1, 2 << 16)) == Dtype.Q8_2F


_TABLE_AT = 2 + 2 * 2  # of a vbit_ro payload of two rows of one group


@pytest.mark.parametrize(
    ("dtype", "at", "value", "message"),
    [
        (Dtype.VBIT, 1, b"\7", "row 1 has codes of 7 bits"),
        (Dtype.VBIT_RO, 0, b"\0", "row 0 has codes of 0 bits"),
        (Dtype.VBIT_RO, _TABLE_AT, b"\1", "row 0 begins at 1, expected 0"),
        (Dtype.VBIT_RO, _TABLE_AT + 7, b"\xff", "row 1 begins at 4278190096, expected 16"),
        (Dtype.Q1S, 12, b"\xff\xff\xff\xff", "expected 25769803786 for its 4294967295 exact weights"),
        (Dtype.Q1S, 16, b"\x40\0\0\0", "exact weight 64 of 64"),
        (Dtype.Q1T, 18, b"\1\0\0\0", "exact weights of row 0 begin at 1"),
        (Dtype.Q1T, 26, b"\xff\0\0\0", "expected 1050 for its 255 exact weights"),
        (Dtype.Q1T, 22, b"\1\0\0\0", "exact weights of row 1 begin at 1 and end before"),
        (Dtype.BLR, 2, b"\3", "BLR path count is 3"),
    ],
)  # fmt: skip
def test_damaged_tables(dtype: Dtype, at: int, value: bytes, message: str) -> None:
    w = np.tile(np.linspace(-7, 7, 32, dtype=np.float32), (2, 1))
    payload = bytearray(_payload(dtype, w))
    payload[at : at + len(value)] = value
    with pytest.raises(FormatError, match=message):
        decode(payload, dtype, w.shape, "t")


def test_q1t_column_out_of_range() -> None:
    payload = half(1) + bytes(7) + struct.pack("<2IHe", 0, 1, 32, 1.0)
    with pytest.raises(FormatError, match="an exact weight in column 32 of 32"):
        decode(payload, Dtype.Q1T, (1, 32), "t")


def _first_float(dtype: Dtype, w: Array) -> list[int]:
    """Where f16 factors (or values) of each kind stand in a payload of `w`."""
    rows, cols = w.shape
    groups = w.size // 32
    return {
        Dtype.F16: [0, 2 * w.size - 2], Dtype.BF16: [0], Dtype.F32: [2],
        Dtype.Q8_ROW: [w.size, w.size + 2 * rows - 2],
        Dtype.Q8_2F: [w.size, w.size + 2 * rows, w.size + 2 * (rows + cols) - 2],
        Dtype.Q4_BLOCK: [16 * groups, 18 * groups - 2], Dtype.Q4_TILED: [0, 18 * (groups - 1)],
        Dtype.Q4TP: [16 * groups, 16 * groups + 2], Dtype.VBIT: [rows], Dtype.VBIT_RO: [rows],
        Dtype.Q1: [0, 6 * (groups - 1)], Dtype.Q1S: [0, 6 * groups + 8, 6 * groups + 14],
        Dtype.Q1T: [0, 9 * groups + 4 * (rows + 1) + 2],
        Dtype.BLR: [16, 16 + 2 * rows, 16 + 2 * (rows + cols)],
    }[dtype]  # fmt: skip


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda d: d.label)
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E01])
def test_non_finite_factors_are_found(dtype: Dtype, bits: int) -> None:
    w = MATRICES["outliers"]
    payload = _payload(dtype, w)
    assert is_finite(payload, dtype, w.shape)
    if dtype in (Dtype.F32, Dtype.BF16):
        bits = {0x7C00: 0x7F80, 0xFC00: 0xFF80, 0x7E01: 0x7FC1}[bits]
    for at in _first_float(dtype, w):
        damaged = bytearray(payload)
        damaged[at : at + 2] = struct.pack("<H", bits)
        if dtype == Dtype.Q4TP and bits == 0xFC00:  # 2^-inf is 0: finite where it is the first rung
            continue
        assert not is_finite(damaged, dtype, w.shape), at


def test_ladders_that_overflow_are_not_finite() -> None:
    payload = bytearray(encode(MATRICES["one group"], Dtype.Q4TP, "t"))
    payload[16:18] = half(127.0)
    assert not is_finite(payload, Dtype.Q4TP, (1, 32))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(Dtype.Q4_BLOCK, 1e6), (Dtype.Q4_TILED, 1e6), (Dtype.VBIT_RO, 1e7), (Dtype.Q1, 7e4), (Dtype.Q1T, 7e4),
     (Dtype.Q4TP, 3.4e38)],
)  # fmt: skip
def test_overflow_names_the_tensor(dtype: Dtype, value: float) -> None:
    with pytest.raises(InputError, match=rf"model\.x: largest magnitude .* {dtype.label}"):
        encode(np.full((2, 32), value, np.float32), dtype, "model.x")


def test_names_of_encoders() -> None:
    assert [d.label for d in ENCODED] == [
        "f32", "f16", "bf16", "q8_row", "q4_block", "q8_2f", "vbit_ro", "q4_tiled", "q1", "q1t", "q4tp",
    ]  # fmt: skip
    assert all(dtype_by_name(d.label) == d for d in ENCODED)
    assert set(CODECS) == set(Dtype)
