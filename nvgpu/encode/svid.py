"""Dual-SVID starts: signs and scales from a truncated singular value decomposition.

The construction is the one published as LittleBit (arXiv 2506.13771): W ~ P Q with the root of the singular
values on both sides, signs of P and Q, and a rank-1 fit of their magnitudes. Ours is exact and deterministic:
LAPACK throughout, no randomised decomposition.
"""

from __future__ import annotations

import numpy as np

from nvgpu.encode.factors import F64, Path, Problem, signs


def svid_start(problem: Problem) -> Path:
    """One path. Ranks beyond min(m, n) get l = 0. The Gram plays no part."""
    rank = problem.rank
    u, s, vt = np.linalg.svd(problem.w, full_matrices=False)
    root = np.sqrt(s[:rank])
    p = _pad(u[:, :rank] * root, rank, axis=1)
    q = _pad(root[:, None] * vt[:rank], rank, axis=0)
    return from_factors(p, q)


def from_factors(p: F64, q: F64) -> Path:
    """The path of the signs and rank-one magnitudes of p [m, r] and q [r, n]."""
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


def _pad(a: F64, size: int, axis: int) -> F64:
    missing = size - a.shape[axis]
    if missing <= 0:
        return a
    width = [(0, 0), (0, 0)]
    width[axis] = (0, missing)
    return np.pad(a, width)
