"""Dual-SVID starts: signs and scales from a truncated singular value decomposition.

The construction is the one published as LittleBit (arXiv 2506.13771): W ~ P Q with the root of the singular
values on both sides, signs of P and Q, and a rank-1 fit of their magnitudes. Ours is exact and deterministic:
LAPACK throughout, no randomised decomposition.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nvgpu.encode.factors import F64, Path, Problem, dense, signs
from nvgpu.encode.refit import refit


def dual_svid(w: F64, rank: int) -> Path:
    """One path for w [m, n]. Ranks beyond min(m, n) get l = 0. The Gram plays no part in the start."""
    u, s, vt = np.linalg.svd(w, full_matrices=False)
    root = np.sqrt(s[:rank])
    p = _pad(u[:, :rank] * root, rank, axis=1)
    q = _pad(root[:, None] * vt[:rank], rank, axis=0)
    h, l_u = rank_one(np.abs(p))
    l_v, g = rank_one(np.abs(q))
    return Path(h=h, u=signs(p), l=l_u * l_v, v=signs(q), g=g)


def rank_one(a: F64) -> tuple[F64, F64]:
    """x [m] and y [k], both >= 0 and of equal norm, that minimise ||a - x y^T|| for a [m, k] >= 0."""
    transposed = a.shape[0] < a.shape[1]
    tall = a.T if transposed else a
    right = np.abs(np.linalg.eigh(tall.T @ tall)[1][:, -1])
    left = tall @ right  # singular value times the unit left vector
    sigma = float(np.linalg.norm(left))
    root = np.sqrt(sigma)
    x, y = (left / root, right * root) if sigma > 0 else (left, right * 0.0)
    return (y, x) if transposed else (x, y)


def svid(problem: Problem) -> list[Path]:
    """Plain Dual-SVID; a second path encodes the residual of the first at the same rank."""
    paths = [dual_svid(problem.w, problem.rank)]
    if problem.paths == 2:
        paths.append(dual_svid(problem.w - dense(paths), problem.rank))
    return paths


def svid_refit(problem: Problem) -> list[Path]:
    """Dual-SVID with exact refits of all scales; a second path starts from what the refitted first leaves."""
    paths = refit(problem, [dual_svid(problem.w, problem.rank)])
    if problem.paths == 2:
        residual = replace(problem, w=problem.w - dense(paths), paths=1)
        paths = refit(problem, [*paths, *refit(residual, [dual_svid(residual.w, residual.rank)])])
    return paths


def _pad(a: F64, size: int, axis: int) -> F64:
    missing = size - a.shape[axis]
    if missing <= 0:
        return a
    width = [(0, 0), (0, 0)]
    width[axis] = (0, missing)
    return np.pad(a, width)
