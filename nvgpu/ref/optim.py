"""Optimiser arithmetic, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.ref.elementwise import f64

Array = np.ndarray[Any, Any]


def sumsq(g: Array) -> float:
    """Sum of squares."""
    (g,) = f64(g)
    return float(np.sum(g * g))


def adam(
    w: Array,
    g: Array,
    m1: Array,
    m2: Array,
    mask: Array,
    floor: Array,
    *,
    lr: float,
    step: int,
    b1: float,
    b2: float,
    eps: float,
    gmul: float,
) -> tuple[Array, Array, Array]:
    """(w, m1, m2) after step `step` (from 1): masked Adam, relative to max(|w|, floor) where floor > 0."""
    w, g, m1, m2, mask, floor = f64(w, g, m1, m2, mask, floor)
    g = g * gmul * mask
    m1 = b1 * m1 + (1 - b1) * g
    m2 = b2 * m2 + (1 - b2) * g * g
    update = (m1 / (1 - b1**step)) / (np.sqrt(m2 / (1 - b2**step)) + eps)
    size = np.where(floor > 0, np.maximum(np.abs(w), floor), 1.0)
    return w - lr * update * size * mask, m1, m2
