"""Head and losses, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.ref.elementwise import f64

Array = np.ndarray[Any, Any]


def logits(x: Array, w: Array) -> Array:
    """[N, V] = x [N, C] · w [V, C]ᵀ."""
    x, w = f64(x, w)
    return x @ w.T


def lse(logits: Array) -> Array:
    """[N]: log of the sum of exponentials."""
    (logits,) = f64(logits)
    top = logits.max(axis=1)
    z: Array = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return z


def topk(logits: Array, k: int) -> tuple[Array, Array]:
    """(ids u32 [N, K], p [N, K] that sums to 1): the K largest, descending, the lower id first on ties."""
    (logits,) = f64(logits)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(logits, ids, axis=1)
    p = np.exp(best - best[:, :1])
    return ids.astype(np.uint32), p / p.sum(axis=1, keepdims=True)


def kl_topk(logits: Array, ids: Array, p: Array, row_weight: Array) -> tuple[Array, Array]:
    """(KL(p ‖ softmax) of every row [N], dlogits [N, V] of the weighted sum); terms with p = 0 add 0."""
    logits, p, row_weight = f64(logits, p, row_weight)
    z = lse(logits)[:, None]
    picked = np.take_along_axis(logits, ids.astype(np.int64), axis=1)
    safe = np.where(p > 0, p, 1.0)
    kl = np.sum(np.where(p > 0, p * (np.log(safe) - (picked - z)), 0.0), axis=1)
    grad = np.exp(logits - z) * p.sum(axis=1, keepdims=True)
    np.subtract.at(grad, (np.arange(len(ids))[:, None], ids.astype(np.int64)), p)
    return kl, grad * row_weight[:, None]


def kl_full(t_logits: Array, s_logits: Array) -> Array:
    """[N]: KL(teacher ‖ student) over the whole vocabulary."""
    t_logits, s_logits = f64(t_logits, s_logits)
    t = t_logits - lse(t_logits)[:, None]
    s = s_logits - lse(s_logits)[:, None]
    kl: Array = np.sum(np.exp(t) * (t - s), axis=1)
    return kl


def nll(logits: Array, targets: Array) -> Array:
    """[N]: -log softmax at the target."""
    (logits,) = f64(logits)
    picked: Array = np.take_along_axis(logits, targets.astype(np.int64)[:, None], axis=1)
    return lse(logits) - picked[:, 0]
