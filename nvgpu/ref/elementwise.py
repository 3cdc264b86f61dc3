"""Pointwise ops and column sums, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def f64(*arrays: Array) -> tuple[Array, ...]:
    """The arrays in float64."""
    return tuple(np.asarray(a, np.float64) for a in arrays)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def silu(x: Array) -> Array:
    """x·sigmoid(x)."""
    return x * sigmoid(x)


def dsilu(x: Array) -> Array:
    """Derivative of silu."""
    s = sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


def softplus(x: Array) -> Array:
    """ln(1 + exp(x)), without overflow."""
    return np.logaddexp(0.0, x)


def add(a: Array, b: Array) -> Array:
    a, b = f64(a, b)
    return a + b


def scale(x: Array, *, s: float) -> Array:
    (x,) = f64(x)
    return s * x


def swiglu_fwd(gate: Array, up: Array) -> Array:
    """silu(gate)·up."""
    gate, up = f64(gate, up)
    return silu(gate) * up


def swiglu_bwd(gate: Array, up: Array, dy: Array) -> tuple[Array, Array]:
    """(dgate, dup)."""
    gate, up, dy = f64(gate, up, dy)
    return dy * up * dsilu(gate), dy * silu(gate)


def sigmoid_gate_fwd(x: Array, gate: Array) -> Array:
    """x·sigmoid(gate)."""
    x, gate = f64(x, gate)
    return x * sigmoid(gate)


def sigmoid_gate_bwd(x: Array, gate: Array, dy: Array) -> tuple[Array, Array]:
    """(dx, dgate)."""
    x, gate, dy = f64(x, gate, dy)
    s = sigmoid(gate)
    return dy * s, dy * x * s * (1.0 - s)


def col_scale(x: Array, g: Array) -> Array:
    """x [N, C] with column c times g[c]."""
    x, g = f64(x, g)
    return x * g


def colsum_mul(a: Array, b: Array) -> Array:
    """[C]: sum over the rows of a·b, both [N, C]."""
    a, b = f64(a, b)
    y: Array = np.einsum("nc,nc->c", a, b)
    return y
