"""Alternating-direction starts: both factors are solved for by ridge regression while they are pulled to the sign-value form.

W ~ P Q in the metric of the Gram; each of P and Q has a copy of the form signs times rank-one magnitudes and a multiplier
(the scheme published as NanoQuant). The solve for Q is coupled through the Gram on one side and PᵀP on the other, and exact in
the two eigenbases. The pull grows round by round.
"""

from __future__ import annotations

import numpy as np

from nvgpu.encode.factors import F64, Path, Problem, signs
from nvgpu.encode.lowrank import lowrank
from nvgpu.encode.svid import from_factors, rank_one

_ROUNDS = 100
_TINY = 1e-300  # a zero matrix stays one
_PULL = (0.03, 3.0)  # first and last, in units of the mean curvature of the fit


def admm_start(problem: Problem, rounds: int = _ROUNDS) -> Path:
    """One path, its scales not yet refitted. Ranks beyond min(m, n) start from random signs."""
    p, q = _first(problem)
    spectrum, basis = _eigen(problem)
    wg = problem.wg
    zp, zq = _project(p), _project(q)
    yp, yq = np.zeros_like(p), np.zeros_like(q)
    for pull in np.linspace(*_PULL, rounds):
        # 1. P = argmin ||(W - P Q) G^(1/2)||^2 + pull ||P - (zp - yp)||^2
        curve = problem.weigh(q) @ q.T
        ridge = max(pull * np.trace(curve) / problem.rank, _TINY)
        p = np.linalg.solve(curve + ridge * np.eye(problem.rank), (wg @ q.T + ridge * (zp - yp)).T).T
        zp = _project(p + yp)
        yp += p - zp
        # 2. Q likewise, in the eigenbases of PᵀP and G
        values, vectors = np.linalg.eigh(p.T @ p)
        values = np.maximum(values, 0.0)
        ridge = max(pull * values.mean() * spectrum.mean(), _TINY)
        right = vectors.T @ (p.T @ wg + ridge * (zq - yq))
        q = vectors @ _through(basis, right, 1.0 / (values[:, None] * spectrum + ridge))
        zq = _project(q + yq)
        yq += q - zq
    return from_factors(p + yp, q + yq)


def _first(problem: Problem) -> tuple[F64, F64]:
    """The best factors of the rank, mixed by a random rotation; ranks that they lack are random signs."""
    rng = np.random.default_rng(problem.seed)
    p, q = lowrank(problem)
    spare = problem.rank - min(problem.w.shape)
    if spare > 0:
        size = [float(np.sqrt(np.mean(np.square(a)))) for a in (p, q)]
        p[:, -spare:] = size[0] * signs(rng.standard_normal((p.shape[0], spare)))
        q[-spare:] = size[1] * signs(rng.standard_normal((spare, q.shape[1])))
    mix = np.linalg.qr(rng.standard_normal((problem.rank, problem.rank)))[0]
    return p @ mix, mix.T @ q


def _eigen(problem: Problem) -> tuple[F64, F64 | None]:
    if problem.gram is None:
        return np.ones(problem.w.shape[1]), None
    spectrum, basis = np.linalg.eigh(problem.gram)
    return np.maximum(spectrum, 0.0), basis


def _through(basis: F64 | None, a: F64, factor: F64) -> F64:
    """a with its rows' coordinates in the basis multiplied by `factor`."""
    if basis is None:
        return a * factor
    out: F64 = ((a @ basis) * factor) @ basis.T
    return out


def _project(a: F64) -> F64:
    """The nearest matrix of signs times rank-one magnitudes."""
    x, y = rank_one(np.abs(a))
    return signs(a) * np.outer(x, y)
