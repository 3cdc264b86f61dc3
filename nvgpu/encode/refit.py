"""Exact least-squares refits of the scales h, l, g with the signs fixed.

With the other two held, What is linear in each of them, so each refit solves its own normal equations and no
refit raises the error ||(W - What) G^(1/2)||. All paths are refitted jointly. Letters as in `factors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nvgpu.encode.factors import F64, Path, Problem

_SWEEPS = 30
_GAIN = 1e-4  # relative fall of the squared error below which another sweep does not pay


def refit_h(problem: Problem, paths: Sequence[Path], cores: Sequence[F64]) -> list[Path]:
    """New h of every path; `cores` are their U diag(l) V. Each row is a paths x paths system of its own."""
    terms = [core * path.g for core, path in zip(cores, paths, strict=True)]
    weighed = [problem.weigh(t) for t in terms]
    a = np.stack([np.stack([np.einsum("ij,ij->i", x, y) for y in weighed], -1) for x in terms], -2)
    b = np.stack([np.einsum("ij,ij->i", problem.wg, t) for t in terms], -1)
    return [replace(p, h=h) for p, h in zip(paths, _solve_small(a, b).T, strict=True)]


def refit_g(problem: Problem, paths: Sequence[Path], cores: Sequence[F64]) -> list[Path]:
    """New g of every path. Columns are independent without a Gram and coupled through it with one."""
    terms = [path.h[:, None] * core for core, path in zip(cores, paths, strict=True)]
    b = np.stack([np.einsum("ij,ij->j", t, problem.wg) for t in terms], -1)
    if problem.gram is None:
        a = np.stack([np.stack([np.einsum("ij,ij->j", x, y) for y in terms], -1) for x in terms], -2)
        g = _solve_small(a, b).T
    else:
        gram = problem.gram
        system = np.block([[(x.T @ y) * gram for y in terms] for x in terms])
        g = _solve(system, b.T.ravel()).reshape(len(paths), -1)
    return [replace(p, g=row) for p, row in zip(paths, g, strict=True)]


def refit_l(problem: Problem, paths: Sequence[Path]) -> list[Path]:
    """New l of every path, from the normal equations over all ranks of all paths."""
    left = np.concatenate([p.h[:, None] * p.u for p in paths], axis=1)
    right = np.concatenate([p.v * p.g for p in paths], axis=0)
    system = (left.T @ left) * (problem.weigh(right) @ right.T)
    target = np.einsum("kj,kj->k", left.T @ problem.wg, right)
    parts = np.split(_solve(system, target), np.cumsum([p.l.size for p in paths])[:-1])
    return [replace(p, l=part) for p, part in zip(paths, parts, strict=True)]


def refit(problem: Problem, paths: Sequence[Path], sweeps: int = _SWEEPS) -> list[Path]:
    """Refits l, h and g in turn until a sweep gains less than 1e-4 of the squared error, at most `sweeps` times.

    Returns paths whose error is at most that of the given ones, whatever the conditioning.
    """
    best = list(paths)
    best_error = problem.error2(_combine(best, [p.core() for p in best]))
    for _ in range(sweeps):
        trial = refit_l(problem, best)
        cores = [p.core() for p in trial]
        trial = refit_g(problem, refit_h(problem, trial, cores), cores)
        error = problem.error2(_combine(trial, cores))
        if not error < best_error:
            break
        gain, best, best_error = best_error - error, trial, error
        if gain < _GAIN * (error + gain):
            break
    return best


def _combine(paths: Sequence[Path], cores: Sequence[F64]) -> F64:
    total = np.zeros_like(cores[0])
    for path, core in zip(paths, cores, strict=True):
        total += path.h[:, None] * core * path.g
    return total


def _solve_small(a: F64, b: F64) -> F64:
    """Least-norm solutions of many small systems: a [.., p, p] symmetric semi-definite, b [.., p]."""
    x: F64 = np.matmul(np.linalg.pinv(a, hermitian=True), b[..., None])[..., 0]
    return x


def _solve(a: F64, b: F64) -> F64:
    """A solution of the semi-definite system a [k, k] x = b [k]; entries whose diagonal is zero get 0."""
    diagonal = np.diagonal(a)
    live = diagonal > 0
    scale = 1.0 / np.sqrt(diagonal[live])
    a = a[np.ix_(live, live)] * scale[:, None] * scale
    b = b[live] * scale
    try:
        np.linalg.cholesky(a)  # as the test for definiteness: numpy has no triangular solve
        y = np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        y = np.linalg.lstsq(a, b, rcond=None)[0]
    x = np.zeros(live.size)
    x[live] = y * scale
    return x
