"""hash64, the non-cryptographic 64-bit hash of CMF sections and tensors.

The data is zero-padded to 8-byte little-endian words w_i. h = XOR of fmix64(w_i) ^ (i * 0x9E3779B97F4A7C15),
modulo 2^64, then h ^= length in bytes, and the hash is fmix64(h); fmix64 is the finaliser of murmur3.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from nvgpu.formats.files import Bytes, byte_view

_SALT = np.uint64(0x9E3779B97F4A7C15)
_MUL1 = np.uint64(0xFF51AFD7ED558CCD)
_MUL2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


@numba.njit(cache=True, inline="always")
def _fmix64(x: Any) -> Any:
    x ^= x >> _SHIFT
    x *= _MUL1
    x ^= x >> _SHIFT
    x *= _MUL2
    x ^= x >> _SHIFT
    return x


@numba.njit(cache=True)
def _fold(words: np.ndarray[Any, Any], first: Any) -> Any:
    h = np.uint64(0)
    salt = first * _SALT
    for w in words:
        h ^= _fmix64(w) ^ salt
        salt += _SALT
    return h


@numba.njit(cache=True)
def _finish(h: Any) -> Any:
    return _fmix64(h)


class Hash64:
    """The hash of data that arrives in pieces: `update` any number of times, then `digest`."""

    def __init__(self) -> None:
        self._acc = 0
        self._length = 0
        self._tail = b""

    def update(self, data: Bytes) -> None:
        """Append `data`."""
        view = byte_view(data)
        self._length += len(view)
        if self._tail:
            need = 8 - len(self._tail)
            self._tail += bytes(view[:need])
            view = view[need:]
            if len(self._tail) < 8:
                return
            tail, self._tail = self._tail, b""
            self._words(tail, self._length - len(view) - 8)
        whole = len(view) // 8 * 8
        self._words(view[:whole], self._length - len(view))
        self._tail = bytes(view[whole:])

    def digest(self) -> int:
        """The hash of everything so far."""
        acc = self._acc
        if self._tail:
            acc ^= _folded(self._tail.ljust(8, b"\0"), self._length // 8)
        return int(_finish(np.uint64(acc ^ self._length)))

    def _words(self, data: bytes | memoryview, begin: int) -> None:
        if data:
            self._acc ^= _folded(data, begin // 8)


def _folded(data: bytes | memoryview, first: int) -> int:
    words = np.frombuffer(data, "<u8").astype(np.uint64, copy=False)
    if not words.flags.aligned:
        words = words.copy()
    words.flags.writeable = False  # one compiled version serves every caller
    return int(_fold(words, np.uint64(first)))


def hash64(data: Bytes) -> int:
    """The hash of `data`."""
    h = Hash64()
    h.update(data)
    return h.digest()
