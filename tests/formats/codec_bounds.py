"""How far a decoded weight may lie from the one that was encoded: one derived bound a codec, elementwise.

Codes are chosen for the stored (rounded) scale s, so that inside the range of the codes the error is at most s/2;
beyond the outermost code it is the distance to that code. `_SLACK` covers the float32 products of a decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nvgpu.formats.codecs import CODECS, Dtype
from nvgpu.formats.quant.q4 import Q4Ladder

Array = np.ndarray[Any, Any]

_SLACK = 1e-5
_F16 = 2.0**-11  # half a unit in the last place, relative
_F16_SMALLEST = 2.0**-25  # half of the smallest subnormal
_BF16 = 2.0**-8


def bound(w: Array, payload: Array, dtype: Dtype) -> Array:
    """The largest error of every weight of the matrix `w` `[rows, columns]`, float64."""
    limit = _BOUNDS[dtype](np.abs(w).astype(np.float64), payload)
    limit = limit + _SLACK * np.maximum(np.abs(w), limit)
    return limit


def _scales(payload: Array, dtype: Dtype, shape: tuple[int, ...]) -> Array:
    (scales,) = list(CODECS[dtype].factors(payload, shape))[:1]
    return scales.astype(np.float64)


def _steps(magnitude: Array, scale: Array, most: float) -> Array:
    """Half a step, or the distance to the outermost code `most`."""
    return np.maximum(scale / 2, magnitude - most * scale)


def _q8_row(magnitude: Array, payload: Array) -> Array:
    """round_scale keeps every weight within 127.5 steps, so clipping never costs more than half a step."""
    row = _scales(payload, Dtype.Q8_ROW, magnitude.shape)
    return np.broadcast_to(row[:, None] / 2, magnitude.shape)


def _q8_2f(magnitude: Array, payload: Array) -> Array:
    fields = _scales(payload, Dtype.Q8_2F, magnitude.shape)
    return fields[: len(magnitude), None] * fields[len(magnitude) :] / 2


def _q4(dtype: Dtype) -> Callable[[Array, Array], Array]:
    """absmax/7, within 7.5 steps after its rounding to f16: half a step everywhere."""

    def limit(magnitude: Array, payload: Array) -> Array:
        scale = np.repeat(_scales(payload, dtype, magnitude.shape).reshape(-1), 32)[: magnitude.size]
        return scale.reshape(magnitude.shape) / 2

    return limit


def _q4tp(magnitude: Array, payload: Array) -> Array:
    """The rung may lie below absmax/7, so the largest weights may be clipped; see `rung_bound` for how far."""
    rows = len(magnitude)
    scale = Q4Ladder()._scales(payload, magnitude.shape, 0, rows).astype(np.float64)
    return _steps(magnitude, np.repeat(scale, 32, axis=1), 7.0)


def _vbit_ro(magnitude: Array, payload: Array) -> Array:
    """absmax/L, within L + 1/2 steps: half a step everywhere."""
    scale = _scales(payload, Dtype.VBIT_RO, magnitude.shape).reshape(len(magnitude), -1)
    return np.repeat(scale, 32, axis=1) / 2


def _q1(magnitude: Array, payload: Array) -> Array:
    """The sign is kept: the distance of the magnitude to the scale."""
    scale = _scales(payload, Dtype.Q1, magnitude.shape).reshape(len(magnitude), -1)
    return np.abs(magnitude - np.repeat(scale, 32, axis=1))


def _q1t(magnitude: Array, payload: Array) -> Array:
    """The nearer of 0 and the scale costs at most half a scale below 1.5 scales; an exact weight its rounding.

    The best support ends where the next smaller weight lies below half of the mean over it (else taking it in would
    lower the error); f16 moves that half by its rounding.
    """
    scale = _scales(payload, Dtype.Q1T, magnitude.shape).reshape(len(magnitude), -1)
    scale = np.repeat(scale, 32, axis=1)
    return np.maximum(scale * (0.5 + 2 * _F16), np.abs(magnitude - scale)) + _F16 * magnitude + _F16_SMALLEST


_BOUNDS: dict[Dtype, Callable[[Array, Array], Array]] = {
    Dtype.F32: lambda magnitude, payload: np.zeros(magnitude.shape),
    Dtype.F16: lambda magnitude, payload: np.maximum(_F16 * magnitude, _F16_SMALLEST),
    Dtype.BF16: lambda magnitude, payload: _BF16 * magnitude,
    Dtype.Q8_ROW: _q8_row,
    Dtype.Q8_2F: _q8_2f,
    Dtype.Q4_BLOCK: _q4(Dtype.Q4_BLOCK),
    Dtype.Q4_TILED: _q4(Dtype.Q4_TILED),
    Dtype.Q4TP: _q4tp,
    Dtype.VBIT_RO: _vbit_ro,
    Dtype.Q1: _q1,
    Dtype.Q1T: _q1t,
}
