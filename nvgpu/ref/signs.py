"""Sign training, in float64: gradient products, latents, their stochastic rounding, and flips.

Every sign has a latent, f16 in (-1, 1) and never 0. Rounding and random numbers are integer arithmetic, the same as on the
device, on values that were rounded to f32 first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvgpu.ref.elementwise import f64
from nvgpu.ref.linear import Path, unpack_signs

Array = np.ndarray[Any, Any]

OPTIMISERS = ("fact", "fact-mom", "adam")
TANH_LIMIT = 15.0
LARGEST_HALF = 65504.0
_GOLDEN = 0x9E3779B9
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class Hyper:
    """A sign step: rate eta, factor `unscale` of the stored gradients, EMA decays, eps, clamp of the update, hysteresis,
    slope k of the straight-through tanh, and the number of the step (from 1)."""

    eta: float
    step: int
    unscale: float = 1.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-3
    clamp: float = 4.0
    hyst: float = 0.0
    k: float = 8.0

    def vector(self) -> Array:
        """As the device takes them: f32 [12]."""
        b1, b2 = float(np.float32(self.b1)), float(np.float32(self.b2))  # the decays that act
        corrections = 1 / (1 - b1**self.step), 1 / (1 - b2**self.step)
        values = (self.eta, self.unscale, b1, corrections[0], b2, corrections[1], self.eps, self.clamp)
        return np.array([*values, self.hyst, self.k, self.step, 0.0], np.float32)


@dataclass
class Moments:
    """What the optimisers keep of a matrix [R, C]: EMAs of the row means, the column means and the mean of q²,
    of q (first), and for `adam` of q² entry by entry (second)."""

    rows: Array
    cols: Array
    mean: float
    first: Array
    second: Array

    @classmethod
    def zeros(cls, rows: int, cols: int) -> Moments:
        return cls(np.zeros(rows), np.zeros(cols), 0.0, np.zeros((rows, cols)), np.zeros((rows, cols)))


# ── random numbers ──


def splitmix64(x: int) -> int:
    """The first output of splitmix64 (Steele, Lea, Flood 2014) from `x`."""
    z = (x + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def matrix_key(seed: int, matrix: int) -> int:
    """32 bits that tell the random numbers of a run's sign matrices apart."""
    return splitmix64(splitmix64(seed & _MASK64) ^ matrix) & 0xFFFFFFFF


def fmix32(x: Array) -> Array:
    """murmur3's 32-bit finaliser, u32 to u32."""
    x = x.astype(np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    mixed: Array = x ^ (x >> np.uint32(16))
    return mixed


def random_bits(key: int, step: int, index: Array) -> Array:
    """u32 of every sign at a step; `index` is its place in the matrix, row-major."""
    shift = np.uint32(step * _GOLDEN & 0xFFFFFFFF)
    return fmix32(fmix32(index.astype(np.uint32) ^ np.uint32(key)) + shift)


# ── f16 by integer arithmetic ──


def _half_units(x: Array) -> Array:
    """|x| in units of 2^-13 of an f16's last place, as u32; |x| <= 65504 and f32."""
    magnitude = np.abs(x.astype(np.float32))
    small = (np.minimum(magnitude, np.float32(2.0**-14)) * np.float32(2.0**37)).astype(np.uint32)
    return np.where(
        magnitude < np.float32(2.0**-14), small, magnitude.view(np.uint32) - np.uint32(0x38000000)
    )


def half_stochastic(x: Array, noise: Array) -> Array:
    """f16 bits of x, rounded up in magnitude with the probability of what does not fit; `noise` u32 below 2^13."""
    magnitude = (_half_units(x) + noise.astype(np.uint32)) >> np.uint32(13)
    return (magnitude | (np.signbit(x).astype(np.uint32) << np.uint32(15))).astype(np.uint16)


def half_nearest(x: Array) -> Array:
    """f16 bits of x, rounded to the nearest, ties to even."""
    units = _half_units(x)
    return half_stochastic(x, np.uint32(0xFFF) + ((units >> np.uint32(13)) & np.uint32(1)))


# ── a step ──


def sign_grads(x: Array, paths: Sequence[Path], dy: Array) -> list[tuple[Array, Array]]:
    """(dU [m, r], dV [r, n]) of every path of y = x · Wᵀ, as if the signs were real numbers."""
    x, dy = f64(x, dy)
    found = []
    for path in paths:
        h, l, g = f64(*path[:3])
        U, V = unpack_signs(path[3], len(l)), unpack_signs(path[4], len(g))
        t = (x * g) @ V.T
        ds = (dy * h) @ U
        found.append((outer_sum(dy, t, h, l), outer_sum(ds, x, l, g)))
    return found


def outer_sum(a: Array, b: Array, rows: Array, cols: Array) -> Array:
    """[N, K]: rows_n cols_k Σ_m a_mn b_mk, a [M, N], b [M, K]."""
    a, b, rows, cols = f64(a, b, rows, cols)
    y: Array = ((a * rows).T @ b) * cols
    return y


def first_latents(signs: Array, *, key: int, tau: float) -> Array:
    """f16 latents [R, C]: magnitudes uniform in (0, 2τ), with the signs given; `key` is the matrix's."""
    index = np.arange(signs.size, dtype=np.uint32).reshape(signs.shape)
    fraction = (random_bits(key, 0, index) >> np.uint32(8)).astype(np.float32)
    size = half_nearest(fraction * np.float32(2.0 * tau * 2.0**-24))
    return (np.maximum(size, 1) | np.where(signs < 0, 0x8000, 0)).astype(np.uint16).view(np.float16)


def slope(grad: Array, latents: Array, hyper: Hyper) -> Array:
    """q = G·k·(1 - tanh²(k·lat)), G without the gradients' scale."""
    grad, latents = f64(grad, latents)
    z = np.minimum(np.abs(hyper.k * latents), TANH_LIMIT)
    decay = np.exp(-2.0 * z)
    q: Array = grad * hyper.unscale * hyper.k * 4.0 * decay / (1.0 + decay) ** 2
    return q


def factors(q: Array, moments: Moments, hyper: Hyper) -> None:
    """The EMAs of the means of q²."""
    b2 = float(np.float32(hyper.b2))
    square = q * q
    moments.rows = b2 * moments.rows + (1 - b2) * square.mean(axis=1)
    moments.cols = b2 * moments.cols + (1 - b2) * square.mean(axis=0)
    moments.mean = b2 * moments.mean + (1 - b2) * float(square.mean())


def direction(q: Array, moments: Moments, hyper: Hyper, optimiser: str) -> Array:
    """u before its clamp; 0 where all gradients have been 0. Moves the EMAs entry by entry on, `first` not yet as it is kept."""
    b1, b2 = float(np.float32(hyper.b1)), float(np.float32(hyper.b2))
    first = q
    if optimiser != "fact":
        moments.first = b1 * moments.first + (1 - b1) * q
        first = moments.first / (1 - b1**hyper.step)
    correction = 1 / (1 - b2**hyper.step)
    if optimiser == "adam":
        moments.second = b2 * moments.second + (1 - b2) * q * q
        second = moments.second * correction
    elif moments.mean > 0:
        second = moments.rows[:, None] * (moments.cols / moments.mean) * correction
    else:
        second = np.zeros_like(q)
    size = np.sqrt(second) + hyper.eps * math.sqrt(moments.mean * correction)
    return np.divide(first, size, out=np.zeros_like(q), where=size > 0)


def first_scale(mean: float) -> float:
    """The power of two that first moments are kept in units of: about the RMS of q, whose mean square is `mean`."""
    return math.ldexp(1.0, (math.frexp(mean)[1] - 1) >> 1)


def stored_first(first: Array, mean: float) -> Array:
    """First moments as they are kept: f16 in units of `first_scale`."""
    scale = first_scale(mean)
    units = np.clip(first / scale, -LARGEST_HALF, LARGEST_HALF).astype(np.float32)
    stored: Array = half_nearest(units).view(np.float16).astype(np.float64) * scale
    return stored


def move(
    latents: Array, bits: Array, u: Array, hyper: Hyper, *, key: int
) -> tuple[Array, Array, dict[str, int]]:
    """(latents f16, bits, counts of clamped and saturated entries and of flips) after a step along -u."""
    u32 = np.clip(u, -hyper.clamp, hyper.clamp).astype(np.float32)
    moved = (latents.astype(np.float32) - np.float32(hyper.eta) * u32).astype(np.float32)
    index = np.arange(latents.size, dtype=np.uint32).reshape(latents.shape)
    noise = random_bits(key, hyper.step, index) & np.uint32(0x1FFF)
    halves = half_stochastic(np.clip(moved, -1, 1), noise)
    vanished = (halves & 0x7FFF) == 0
    halves = np.where(vanished, (latents.view(np.uint16) & 0x8000) | 1, halves).astype(np.uint16)
    after = halves.view(np.float16)
    value = after.astype(np.float64)
    new = np.where(bits, value >= -hyper.hyst, value > hyper.hyst)
    counts = {
        "clamped": int(np.sum(np.abs(u) > hyper.clamp)),
        "saturated": int(np.sum(np.abs(moved) > 1)),
        "flips": int(np.sum(new != bits)),
    }
    return after, new, counts


def sign_step(
    grad: Array, latents: Array, bits: Array, moments: Moments, hyper: Hyper, *, optimiser: str, key: int
) -> tuple[Array, Array, dict[str, int]]:
    """One matrix: (latents, bits, counts) after a step; `moments` is moved on. bits [R, C] are bools, True for +1."""
    q = slope(grad, latents, hyper)
    factors(q, moments, hyper)
    u = direction(q, moments, hyper, optimiser)
    moments.first = stored_first(moments.first, moments.mean)
    return move(latents, bits, u, hyper, key=key)
