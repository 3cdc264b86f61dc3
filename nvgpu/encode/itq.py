"""Rotation starts: Dual-SVID after the rotation of the latent space that makes both factors most like signs.

W G^(1/2) ~ P Q has the same product for every rotation R of the rank space, (P R)(Rᵀ Q); signs and rank-one magnitudes lose least
where the entries of both are of even size. R alternates with the signs it is fitted to (iterative quantisation, Gong and
Lazebnik 2011; jointly for both factors as in LittleBit-2).
"""

from __future__ import annotations

import numpy as np

from nvgpu.encode.factors import F64, Path, Problem, signs
from nvgpu.encode.lowrank import lowrank
from nvgpu.encode.svid import from_factors

_ROUNDS = 50


def itq_start(problem: Problem) -> Path:
    """One path, its scales not yet refitted."""
    p, q = lowrank(problem)
    rotation = fit_rotation(np.concatenate([_even(p), _even(q.T)]), problem.seed)
    return from_factors(p @ rotation, rotation.T @ q)


def fit_rotation(a: F64, seed: int) -> F64:
    """R [r, r] orthogonal that brings a R, a [k, r], near its signs."""
    rng = np.random.default_rng(seed)
    rotation: F64 = np.linalg.qr(rng.standard_normal((a.shape[1], a.shape[1])))[0]
    for _ in range(_ROUNDS):
        left, _, right = np.linalg.svd(a.T @ signs(a @ rotation))
        np.matmul(left, right, out=rotation)
    return rotation


def _even(a: F64) -> F64:
    """Rows of length 1: a row's length becomes its outer scale."""
    norms = np.linalg.norm(a, axis=1, keepdims=True)
    even: F64 = np.divide(a, norms, out=np.zeros_like(a), where=norms > 0)
    return even
