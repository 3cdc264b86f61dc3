"""Central differences in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import numpy as np

Array = np.ndarray[Any, Any]


def rng_of(case: str) -> np.random.Generator:
    """Seeded by the case's name."""
    return np.random.default_rng(crc32(case.encode()))


def central(loss: Callable[[], float], x: Array, index: Sequence[int] | None = None) -> Array:
    """d loss / d x at the flat entries `index` (all of them if None); `loss` reads x, which is put back."""
    flat = x.reshape(-1)
    assert np.shares_memory(flat, x) and x.dtype == np.float64
    found = []
    for i in range(flat.size) if index is None else index:
        kept = flat[i]
        h = 1e-5 * max(1.0, abs(kept))
        flat[i] = kept + h
        above = loss()
        flat[i] = kept - h
        found.append((above - loss()) / (2.0 * h))
        flat[i] = kept
    return np.array(found)


def relative(found: Array, expected: Array) -> float:
    """Relative L2 distance."""
    difference = np.linalg.norm(np.ravel(found) - np.ravel(expected))
    return float(difference / max(float(np.linalg.norm(expected)), 1e-30))
