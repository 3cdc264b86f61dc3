"""What an encoder works on and what it returns, in float64.

W [m, n] is approximated by What = sum over paths of diag(h) U diag(l) V diag(g), U [m, r] and V [r, n] in
{-1, +1}. The error is measured as ||(W - What) G^(1/2)||, G [n, n] the Gram matrix of the layer's input, or
the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_L_RMS = (2.0**-6, 2.0**6)  # outside, f16 loses small entries of l to subnormals or large ones to overflow


@dataclass(frozen=True)
class Path:
    """One term: h [m], u [m, r] of ±1, l [r], v [r, n] of ±1, g [n]."""

    h: F64
    u: F64
    l: F64
    v: F64
    g: F64

    def core(self) -> F64:
        """U diag(l) V, [m, n]: the term without its outer scales."""
        return (self.u * self.l) @ self.v

    def dense(self) -> F64:
        """The term itself, [m, n]."""
        return self.h[:, None] * self.core() * self.g


@dataclass(frozen=True)
class Problem:
    """One matrix to encode: w [m, n], the size of the answer, and the metric its error is measured in."""

    w: F64
    rank: int
    paths: int = 1
    gram: F64 | None = None  # [n, n], symmetric, positive semi-definite
    seed: int = 0  # of what an encoder draws

    def weigh(self, a: F64) -> F64:
        """a G for a [.., n]."""
        return a if self.gram is None else a @ self.gram

    @cached_property
    def wg(self) -> F64:
        """W G, [m, n]."""
        return self.weigh(self.w)

    @cached_property
    def norm2(self) -> float:
        """||W G^(1/2)||^2."""
        return float(np.vdot(self.w, self.wg))

    def error2(self, approx: F64) -> float:
        """||(W - approx) G^(1/2)||^2 for approx [m, n]."""
        diff = self.w - approx
        return max(float(np.vdot(diff, self.weigh(diff))), 0.0)

    def squared_error(self, paths: Sequence[Path]) -> float:
        """||(W - What) G^(1/2)||^2."""
        return self.error2(dense(paths))

    def relative_error(self, paths: Sequence[Path]) -> float:
        """||(W - What) G^(1/2)|| / ||W G^(1/2)||; 0 for a zero matrix that is met exactly."""
        error = self.squared_error(paths)
        return float(np.sqrt(error / self.norm2)) if self.norm2 > 0 else float(np.sqrt(error))


def dense(paths: Sequence[Path]) -> F64:
    """What [m, n]: the sum of the terms."""
    total = paths[0].dense()
    for path in paths[1:]:
        total += path.dense()
    return total


def signs(a: F64) -> F64:
    """±1 of the same shape; the sign of 0 is +1."""
    return np.where(a >= 0, 1.0, -1.0)


def normalise(path: Path) -> Path:
    """The same term with h and g of equal RMS, fit for f16.

    That RMS is 1 and l carries the amplitude, unless the RMS of l would leave [2^-6, 2^6]: then h and g share
    what is beyond. A term that is zero everywhere gets l = 0 and h = g = 1.
    """
    h_rms, l_rms, g_rms = _rms(path.h), _rms(path.l), _rms(path.g)
    amplitude = h_rms * l_rms * g_rms
    if amplitude == 0.0:
        return replace(path, h=np.ones_like(path.h), l=np.zeros_like(path.l), g=np.ones_like(path.g))
    l_new = min(max(amplitude, _L_RMS[0]), _L_RMS[1])
    outer = np.sqrt(amplitude / l_new)
    return replace(path, h=path.h * (outer / h_rms), l=path.l * (l_new / l_rms), g=path.g * (outer / g_rms))


def round_to_f16(path: Path) -> Path:
    """The term as stored: scales rounded to f16, still held in float64. Overflow becomes infinite."""

    def rounded(a: F64) -> F64:
        with np.errstate(over="ignore", under="ignore"):
            return a.astype(np.float16).astype(np.float64)

    return replace(path, h=rounded(path.h), l=rounded(path.l), g=rounded(path.g))


def _rms(a: F64) -> float:
    return float(np.sqrt(np.mean(np.square(a))))
