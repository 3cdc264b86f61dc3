"""The rank rule: how many signs a bit budget buys.

A BLR tensor costs paths * (r * (m + n) + 16 * (m + n + r)) bits:
a path has two sign factors and three f16 scale vectors.
"""

from __future__ import annotations

import math
from fractions import Fraction

from nvgpu.errors import InputError

RANK_STEP = 8  # rows of U are stored as whole bytes


def blr_bits(m: int, n: int, rank: int, paths: int) -> int:
    """Bits of the payload of an [m, n] tensor, the 16-byte header left out."""
    return paths * (rank * (m + n) + 16 * (m + n + rank))


def blr_bpw(m: int, n: int, rank: int, paths: int) -> float:
    """Bits per weight of an [m, n] tensor at this rank."""
    return blr_bits(m, n, rank, paths) / (m * n)


def max_rank(m: int, n: int, times: int = 1) -> int:
    """The largest rank, `times` what singular vectors of [m, n] can fill, in whole steps and at least one step."""
    return max(RANK_STEP, times * min(m, n) // RANK_STEP * RANK_STEP)


def check_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape as (m, n); raises InputError naming the tensor when BLR cannot hold it."""
    if len(shape) != 2 or min(shape) < 1:
        raise InputError(
            f"{name}: shape {list(shape)} cannot become binary low-rank, a matrix [out, in] is expected"
        )
    m, n = shape
    if n % 8:
        raise InputError(f"{name}: {n} inputs, binary low-rank needs a multiple of 8")
    return m, n


def choose_rank(name: str, m: int, n: int, bpw: float, paths: int, times: int = 1) -> int:
    """The largest multiple of 8 whose bits per weight do not exceed `bpw`, at most `max_rank(m, n, times)`.

    As the largest that fits, it can never be rounded up to a kernel's rank tile for free; the device pads it.
    Raises InputError naming the tensor and its least bits per weight when not even rank 8 fits.
    """
    if not (math.isfinite(bpw) and bpw > 0):
        raise InputError(f"--bpw {bpw}: a positive number of bits per weight is expected")
    if paths not in (1, 2):
        raise InputError(f"--paths {paths}: 1 or 2 expected")
    budget = Fraction(str(bpw)) * m * n / paths - 16 * (m + n)
    rank = int(budget // (m + n + 16)) // RANK_STEP * RANK_STEP
    if rank < RANK_STEP:
        least = blr_bpw(m, n, RANK_STEP, paths)
        other = f"; with --paths 1 it is {_ceil(least / 2)}" if paths == 2 else ""
        raise InputError(
            f"{name} [{m}, {n}]: {bpw:g} bits per weight cannot be reached, "
            f"its least with --paths {paths} is {_ceil(least)}{other}"
        )
    return min(rank, max_rank(m, n, times))


def is_capped(shape: tuple[int, ...], rank: int, bpw: float, paths: int) -> bool:
    """Whether `bpw` would buy more than the `rank` that `choose_rank` gave a matrix."""
    m, n = shape
    return blr_bpw(m, n, rank + RANK_STEP, paths) <= bpw


def _ceil(x: float) -> str:
    """Four decimals, rounded up, so that the printed minimum is itself accepted."""
    return f"{math.ceil(x * 1e4) / 1e4:.4f}"
