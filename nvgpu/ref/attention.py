"""Gated causal grouped-query attention with per-head norm and partial rotary embedding, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.ref.elementwise import f64
from nvgpu.ref.norm import rms_norm_fwd, through_norm

Array = np.ndarray[Any, Any]


def split_q_gate(qg: Array, *, heads: int) -> tuple[Array, Array]:
    """q_proj's output [N, H·2·D], per head q then gate: (q, gate), each [N, H·D]."""
    (qg,) = f64(qg)
    parts = qg.reshape(len(qg), heads, 2, -1)
    return parts[:, :, 0].reshape(len(qg), -1), parts[:, :, 1].reshape(len(qg), -1)


def merge_q_gate(dq: Array, dgate: Array, *, heads: int) -> Array:
    """The inverse of split_q_gate."""
    dq, dgate = f64(dq, dgate)
    parts = [a.reshape(len(a), heads, 1, -1) for a in (dq, dgate)]
    return np.concatenate(parts, axis=2).reshape(len(dq), -1)


def rope_table(T: int, inv_freq: Array) -> Array:
    """[T, half, 2]: cosines and sines of position times frequency."""
    angle = np.outer(np.arange(T, dtype=np.float64), np.asarray(inv_freq, np.float64))
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def _rotate(x: Array, table: Array, direction: float) -> Array:
    """Rotate dims (i, i + half) of x [N, H, D] by the angle of position n % T; `direction` -1 undoes it."""
    T, half, _ = table.shape
    rows = table[np.arange(len(x)) % T]
    cos, sin = rows[:, None, :, 0], direction * rows[:, None, :, 1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)


def qk_norm_rope_fwd(x: Array, w: Array, table: Array, *, eps: float, gemma: bool) -> tuple[Array, Array]:
    """x [N, H, D], w [D], table [T, half, 2]: (y, rstd [N, H])."""
    x, w, table = f64(x, w, table)
    y, rstd = rms_norm_fwd(x, w, eps=eps, gemma=gemma)
    return _rotate(y, table, 1.0), rstd


def qk_norm_rope_bwd(x: Array, w: Array, rstd: Array, table: Array, dy: Array, *, gemma: bool) -> Array:
    """dx [N, H, D]."""
    x, w, rstd, table, dy = f64(x, w, rstd, table, dy)
    return through_norm(x, rstd, _rotate(dy, table, -1.0) * (w + 1.0 if gemma else w))


def qk_norm_rope_dw(x: Array, rstd: Array, table: Array, dy: Array) -> Array:
    """dw [D]."""
    x, rstd, table, dy = f64(x, rstd, table, dy)
    dw: Array = np.sum(_rotate(dy, table, -1.0) * x * rstd[..., None], axis=(0, 1))
    return dw


def _scores(q: Array, k: Array) -> Array:
    """[B, H, T, T] scaled, causal scores."""
    T, D = q.shape[1], q.shape[3]
    wide = np.repeat(k, q.shape[2] // k.shape[2], axis=2)
    s = np.einsum("bihd,bjhd->bhij", q, wide) / np.sqrt(D)
    return np.where(np.tril(np.ones((T, T), bool)), s, -np.inf)


def attention_fwd(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """q [B, T, H, D], k and v [B, T, KV, D]: (o [B, T, H, D], lse [B, T, H])."""
    q, k, v = f64(q, k, v)
    s = _scores(q, k)
    top = s.max(axis=-1, keepdims=True)
    lse = np.log(np.exp(s - top).sum(axis=-1, keepdims=True)) + top
    wide = np.repeat(v, q.shape[2] // v.shape[2], axis=2)
    o = np.einsum("bhij,bjhd->bihd", np.exp(s - lse), wide)
    return o, lse[..., 0].transpose(0, 2, 1)


def attention_delta(o: Array, do: Array) -> Array:
    """[B, T, H]: sum over D of o·do."""
    o, do = f64(o, do)
    delta: Array = np.sum(o * do, axis=-1)
    return delta


def attention_bwd(
    q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array
) -> tuple[Array, Array, Array]:
    """(dq, dk, dv)."""
    q, k, v, o, lse, do = f64(q, k, v, o, lse, do)
    B, T, H, D = q.shape
    KV = k.shape[2]
    rep = H // KV
    p = np.exp(_scores(q, k) - lse.transpose(0, 2, 1)[..., None])
    wide_v, wide_k = (np.repeat(a, rep, axis=2) for a in (v, k))
    dp = np.einsum("bihd,bjhd->bhij", do, wide_v)
    ds = p * (dp - attention_delta(o, do).transpose(0, 2, 1)[..., None]) / np.sqrt(D)
    dq = np.einsum("bhij,bjhd->bihd", ds, wide_k)
    dk = np.einsum("bhij,bihd->bjhd", ds, q).reshape(B, T, KV, rep, D).sum(axis=3)
    dv = np.einsum("bhij,bihd->bjhd", p, do).reshape(B, T, KV, rep, D).sum(axis=3)
    return dq, dk, dv
