"""The best factors of a rank before signs are taken: a truncated decomposition in the metric of the Gram."""

from __future__ import annotations

import numpy as np

from nvgpu.encode.factors import F64, Problem

_FLOOR = 1e-9  # of the largest eigenvalue of the Gram: directions below count as this


def lowrank(problem: Problem) -> tuple[F64, F64]:
    """P [m, r] and Q [r, n] that minimise ||(W - P Q) G^(1/2)||, columns of P and rows of Q of equal length.

    Ranks beyond min(m, n) are 0.
    """
    w, rank = problem.w, problem.rank
    if problem.gram is None:
        left, values, right = np.linalg.svd(w, full_matrices=False)
    else:
        spectrum, basis = np.linalg.eigh(problem.gram)
        root = np.sqrt(np.maximum(spectrum, _FLOOR * spectrum[-1]))
        left, values, right = np.linalg.svd((w @ basis) * root, full_matrices=False)
        right = (right / root) @ basis.T
    p, q = np.zeros((w.shape[0], rank)), np.zeros((rank, w.shape[1]))
    r = min(rank, len(values))
    p[:, :r], q[:r] = left[:, :r] * values[:r], right[:r]
    sizes = np.linalg.norm(p, axis=0), np.linalg.norm(q, axis=1)
    balance = np.sqrt(np.divide(sizes[1], sizes[0], out=np.ones(rank), where=sizes[0] > 0))
    return p * balance, q / balance[:, None]
