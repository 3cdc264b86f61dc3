"""Tolerance classes: the one place that says how far a kernel may be from the float64 reference.

u = 2**-24 is the unit roundoff of f32. A bound is per element; `mag` is the sum of the magnitudes of the terms behind an
element (the reference gives it where terms cancel; otherwise it is taken as |want| plus the RMS of the tensor).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

U32 = 2.0**-24
U16 = 2.0**-11
TINY16 = 2.0**-24  # smallest f16 subnormal

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tolerance:
    """`bound(want, mag, terms) -> array`; `terms` is an expression over the dimensions for the length of the sums."""

    name: str
    bound: Callable[[Array, Array, float], Array]
    terms: str = "1"


def exact() -> Tolerance:
    """Equal values: copies, gathers, indices, conversions that round once the same way."""
    return Tolerance("exact", lambda want, mag, terms: np.zeros_like(want))


def pointwise(ops: int = 4) -> Tolerance:
    """`ops` correctly rounded f32 operations one after the other."""
    return Tolerance(f"pointwise({ops})", lambda want, mag, terms: ops * U32 * mag)


def transcendental(ops: int = 1) -> Tolerance:
    """`ops` calls of exp, log, tanh and the like, whose arguments stay within about ±20.

    WGSL allows exp 3 + 2|x| ULP (1 ULP = 2u), so 43 ULP at 20; inverse square roots and divisions (2.5 ULP) fit in too.
    """
    return Tolerance(f"transcendental({ops})", lambda want, mag, terms: ops * 96 * U32 * mag)


def reduction(terms: str) -> Tolerance:
    """A sum of `terms` f32 terms in any order: rounding errors add up like a random walk, hence sqrt; 8 covers short sums."""
    return Tolerance(
        f"reduction({terms})", lambda want, mag, terms: 4 * U32 * (8 + np.sqrt(terms)) * mag, terms
    )


def matmul(terms: str) -> Tolerance:
    """A dot product of length `terms` accumulated in f32; the same growth as a reduction."""
    return Tolerance(f"matmul({terms})", reduction(terms).bound, terms)


def half_inputs(terms: str) -> Tolerance:
    """A dot product of length `terms` whose inputs are rounded to f16 once and summed in f32 (exact weights).

    The roundings add up like a random walk: U16 · mag / sqrt(terms) for equal terms, never more than U16 · mag.
    """

    def bound(want: Array, mag: Array, terms: float) -> Array:
        walk = min(1.0, 8 / np.sqrt(terms))
        rounding: Array = (1.01 * U16 * walk + 4 * U32 * (8 + np.sqrt(terms))) * mag
        return rounding + terms * TINY16

    return Tolerance(f"half_inputs({terms})", bound, terms)


def half_operands(terms: str) -> Tolerance:
    """As `half_inputs`, with both factors of every term rounded to f16 once: twice the rounding."""

    def bound(want: Array, mag: Array, terms: float) -> Array:
        walk = min(1.0, 8 / np.sqrt(terms))
        rounding: Array = (2.02 * U16 * walk + 4 * U32 * (8 + np.sqrt(terms))) * mag
        return rounding + 16 * terms * TINY16  # the other factor is at most 16

    return Tolerance(f"half_operands({terms})", bound, terms)


def scan(terms: str) -> Tolerance:
    """A recurrence over `terms` steps, each of them a short reduction with an exp in it: errors add up along the scan."""
    return Tolerance(f"scan({terms})", lambda want, mag, terms: 16 * U32 * (8 + np.sqrt(terms)) * mag, terms)


def f16_storage() -> Tolerance:
    """A value rounded once to f16 after f32 arithmetic."""
    return Tolerance("f16_storage", lambda want, mag, terms: 1.01 * U16 * np.abs(want) + TINY16)


def half_step() -> Tolerance:
    """Stochastic rounding to f16 of an f32 value: the last place may fall either way where the values differ."""
    return Tolerance("half_step", lambda want, mag, terms: 2 * U16 * np.abs(want) + TINY16)


def magnitude(want: Array) -> Array:
    """The default `mag`: |want| plus the tensor's RMS."""
    finite = want[np.isfinite(want)]
    return np.abs(want) + (np.sqrt(np.mean(finite**2)) if finite.size else 0.0)


# Model-level bars (design: golden data), absolute unless said otherwise.
GOLDEN_HIDDEN = 1e-3
GOLDEN_LOGITS = 1e-3
GOLDEN_NLL = 1e-4
GOLDEN_KL_ABS = 1e-5
GOLDEN_KL_REL = 1e-4
GOLDEN_TIE = 1e-5
GOLDEN_GRAD_REL_L2 = 1e-3
TRAINER_LOSS_REL = 1e-3
MIXED_HIDDEN = 2e-2  # hidden states and logits
MIXED_NLL = 1e-3
MIXED_GRAD_REL_L2 = 2e-2
