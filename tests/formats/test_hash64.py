"""hash64 against vectors worked out with plain integers, and in pieces."""

from __future__ import annotations

import numpy as np
import pytest

from nvgpu.formats.hash64 import Hash64, hash64

_MASK = (1 << 64) - 1


def _fmix64(x: int) -> int:
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & _MASK
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & _MASK
    return x ^ x >> 33


def _by_the_formula(data: bytes) -> int:
    h = 0
    padded = data + bytes(-len(data) % 8)
    for i in range(len(padded) // 8):
        word = int.from_bytes(padded[8 * i : 8 * i + 8], "little")
        h ^= _fmix64(word) ^ (i * 0x9E3779B97F4A7C15 & _MASK)
    return _fmix64(h ^ len(data))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"a", 0x247F1EAECB8BE39A),
        (b"12345678", 0x7D52A777527DAC97),
        (b"123456789", 0x186F5E627DD41972),
        (bytes(64), 0xDF8F278726291401),
    ],
)
def test_vectors(data: bytes, expected: int) -> None:
    assert _by_the_formula(data) == expected
    assert hash64(data) == expected


def test_published_finaliser() -> None:
    assert _fmix64(1) == 0xB456BCFC34C2CB2C  # murmur3's fmix64(1)


@pytest.mark.parametrize("length", [*range(1, 26), 1000, 4099])
def test_every_split(length: int) -> None:
    data = np.random.default_rng(length).bytes(length)
    expected = _by_the_formula(data)
    assert hash64(data) == expected
    for step in (1, 3, 7, 8, 9, 64):
        h = Hash64()
        for begin in range(0, length, step):
            h.update(data[begin : begin + step])
        assert h.digest() == expected


def test_unaligned_and_typed_views() -> None:
    data = bytearray(np.random.default_rng(0).bytes(41))
    assert hash64(memoryview(data)[1:]) == _by_the_formula(bytes(data[1:]))
    floats = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert hash64(floats) == hash64(floats.tobytes())
