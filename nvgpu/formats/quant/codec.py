"""What every storage type offers, and the parts that several of them share."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from nvgpu.errors import FormatError

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

GROUP = 32  # weights that share a scale
_THREAD_WEIGHTS = 1 << 18  # weights worth a thread of their own


class Codec(ABC):
    """A storage type. Payloads are u8 arrays, values float32; rows run along the first axis.

    `encodes` says whether there is an encoder.
    """

    encodes = True

    def shape_error(self, shape: Shape) -> str | None:
        """Why a tensor of that shape cannot be stored; None where it can."""
        return None

    @abstractmethod
    def nbytes(self, shape: Shape) -> int | None:
        """Bytes of a payload; None where the payload itself tells."""

    def bound(self, shape: Shape) -> int:
        """Bytes that `encode` stays within."""
        size = self.nbytes(shape)
        assert size is not None
        return size

    def check(self, data: Array, shape: Shape, where: str) -> None:
        """Raise FormatError where a payload's size or structure is wrong; reads no weights."""
        expected = self.nbytes(shape)
        if expected is not None:
            require_bytes(len(data), expected, f"for shape {list(shape)}", where)

    @abstractmethod
    def decode_rows(self, data: Array, shape: Shape, begin: int, end: int, where: str) -> Array:
        """float32 `[end - begin, columns]` of a checked payload; FormatError for entries out of range."""

    def encode(self, values: Array) -> Array | None:
        """The payload of finite float32 values; None where a scale or value overflows the type."""
        raise NotImplementedError

    @abstractmethod
    def factors(self, data: Array, shape: Shape) -> Iterator[Array]:
        """The float arrays of a checked payload: it is finite where they are."""


class Grouped(Codec):
    """A matrix whose rows are whole groups of 32 weights."""

    def shape_error(self, shape: Shape) -> str | None:
        if len(shape) != 2:
            return "expected two axes"
        if not shape[0] or not shape[1] or shape[1] % GROUP:
            return f"expected rows whose length is a multiple of {GROUP}"
        return None


def matrix(shape: Shape) -> tuple[int, int]:
    """(rows, columns) of a shape, every axis but the first counted as columns."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def require_bytes(found: int, expected: int, what: str, where: str) -> None:
    """Raise FormatError unless a payload has the expected size."""
    if found != expected:
        raise FormatError(f"{where}: payload of {found} bytes, expected {expected} {what}")


def halves(data: Array) -> Array:
    """float32 of little-endian f16 that stand in a u8 array at any place."""
    return np.frombuffer(data.tobytes(), "<f2").astype(np.float32)


def half_bytes(values: Array) -> Array:
    """u8 of values as little-endian f16."""
    return np.ascontiguousarray(values, "<f2").reshape(-1).view(np.uint8)


def round_scale(largest: Array, levels: float | Array) -> Array | None:
    """f16 scales that put magnitudes up to `largest` within ±(levels + 1/2) steps, 0 for 0; None if one overflows."""
    scale = (largest / levels).astype(np.float16)
    short = scale.astype(np.float64) * (levels + 0.5) < largest
    scale = np.where(short, np.nextafter(scale, np.float16(np.inf)), scale)
    return scale if np.isfinite(scale).all() else None


def fixed(array: Array) -> Array:
    """A read-only view: one compiled kernel serves every caller."""
    view = array.view()
    view.flags.writeable = False
    return view


def by_rows(call: Callable[[int, int], object], rows: int, weights: int) -> None:
    """`call(begin, end)` over all rows, in threads where there is enough to do (kernels release the lock)."""
    parts = max(1, min(os.cpu_count() or 1, weights // _THREAD_WEIGHTS, rows))
    if parts == 1:
        call(0, rows)
        return
    edges = [rows * i // parts for i in range(parts + 1)]
    with ThreadPoolExecutor(parts) as pool:
        for done in [pool.submit(call, *span) for span in pairwise(edges)]:
            done.result()
