"""Sign refinement: coordinate descent on the signs of U and V, in turn with refits of the scales.

With scales fixed, a flip of one sign changes the squared error by an exact quadratic, and is taken where that falls. The signs of
a row of U see one matrix [r, r] that all rows share. Those of V are coupled through UᵀU and the Gram: they are visited column by
column, in blocks whose effect on later blocks is one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numba
import numpy as np

from nvgpu.encode.factors import F64, Path, Problem
from nvgpu.encode.refit import refit

_ROUNDS = 30
_GAIN = 2e-3  # relative fall of the squared error below which another round does not pay
_SWEEPS = 3  # over all signs of a factor before the other's turn
_BLOCK = 64  # columns of V


def refine(problem: Problem, paths: Sequence[Path]) -> list[Path]:
    """Signs and scales of lower error: never above that of the given paths."""
    best, best_error = list(paths), problem.squared_error(paths)
    for _ in range(_ROUNDS):
        trial = refit(problem, flip(problem, best), sweeps=2)
        error = problem.squared_error(trial)
        if not error < best_error:
            break
        gain, best, best_error = best_error - error, trial, error
        if gain < _GAIN * (error + gain):
            break
    return refit(problem, best)


def flip(problem: Problem, paths: Sequence[Path]) -> list[Path]:
    """The paths after descent on U and then V of each, the others held."""
    paths = list(paths)
    for i, path in enumerate(paths):
        rest = problem
        if len(paths) > 1:
            others = sum(p.dense() for j, p in enumerate(paths) if j != i)
            rest = replace(problem, w=problem.w - others)
        path = replace(path, u=_flip_u(rest, path))
        paths[i] = replace(path, v=_flip_v(rest, path))
    return paths


def _flip_u(problem: Problem, path: Path) -> F64:
    right = (path.l[:, None] * path.v) * path.g
    shared = problem.weigh(right) @ right.T  # [r, r]
    u, h2 = path.u.copy(), np.square(path.h)
    slope = h2[:, None] * (u @ shared) - path.h[:, None] * (problem.wg @ right.T)
    _descend_rows(u, slope, h2, shared, _SWEEPS)
    return u


def _flip_v(problem: Problem, path: Path) -> F64:
    left = path.h[:, None] * path.u * path.l
    shared = left.T @ left  # [r, r]
    metric = _metric(problem, path.g)  # [n, n]
    v = path.v.copy()
    slope = shared @ (v @ metric) - (left.T @ problem.wg) * path.g
    for _ in range(_SWEEPS):
        flips = 0
        for start in range(0, v.shape[1], _BLOCK):
            block = slice(start, start + _BLOCK)
            before = v[:, block].copy()
            flips += _descend_columns(
                v[:, block], slope[:, block].copy(), shared, metric[block, block].copy()
            )
            changed = v[:, block] - before
            if changed.any():
                slope += (shared @ changed) @ metric[block]
        if flips == 0:
            break
    return v


def _metric(problem: Problem, g: F64) -> F64:
    if problem.gram is None:
        return np.diag(np.square(g))
    return g[:, None] * problem.gram * g


@numba.njit(cache=True, parallel=True)
def _descend_rows(u: F64, slope: F64, h2: F64, shared: F64, sweeps: int) -> None:  # pragma: no cover
    """Flips signs of u [m, r] in place; slope [m, r] is half the derivative of the squared error, and used up."""
    rows, rank = u.shape
    for i in numba.prange(rows):
        for _ in range(sweeps):
            flips = 0
            for k in range(rank):
                if u[i, k] * slope[i, k] > h2[i] * shared[k, k]:
                    change = -2.0 * u[i, k] * h2[i]
                    u[i, k] = -u[i, k]
                    flips += 1
                    for j in range(rank):
                        slope[i, j] += change * shared[k, j]
            if flips == 0:
                break


@numba.njit(cache=True)
def _descend_columns(v: F64, slope: F64, shared: F64, metric: F64) -> int:  # pragma: no cover
    """One sweep over a block of columns v [r, b] in place; slope [r, b] is used up. Returns the number of flips."""
    rank, cols = v.shape
    total = 0
    change = np.zeros(rank)
    for j in range(cols):
        column = slope[:, j].copy()
        flips = 0
        change[:] = 0.0
        for k in range(rank):
            if v[k, j] * column[k] > shared[k, k] * metric[j, j]:
                change[k] = -2.0 * v[k, j]
                v[k, j] = -v[k, j]
                flips += 1
                for q in range(rank):
                    column[q] += change[k] * shared[k, q] * metric[j, j]
        if flips:
            total += flips
            effect = shared @ change
            for q in range(rank):
                for i in range(j + 1, cols):
                    slope[q, i] += effect[q] * metric[j, i]
    return total
