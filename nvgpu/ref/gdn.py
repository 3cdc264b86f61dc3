"""GatedDeltaNet: convolution, gates, l2 norm and the recurrence, each with its backward, in float64."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from nvgpu.ref.elementwise import dsilu, f64, sigmoid, silu, softplus

Array = np.ndarray[Any, Any]


def _shifted(x: Array, w: Array) -> Array:
    """Causal depthwise convolution of x [B, T, C] with w [C, taps]; the last tap meets the current token."""
    T, taps = x.shape[1], w.shape[1]
    padded = np.concatenate([np.zeros((x.shape[0], taps - 1, x.shape[2])), x], axis=1)
    y: Array = np.zeros_like(x)
    for j in range(taps):
        y += padded[:, j : j + T] * w[:, j]
    return y


def conv_silu_fwd(x: Array, w: Array) -> Array:
    """y [B, T, C] = silu(conv(x))."""
    x, w = f64(x, w)
    return silu(_shifted(x, w))


def conv_silu_bwd(x: Array, w: Array, dy: Array) -> tuple[Array, Array]:
    """(dx [B, T, C], dw [C, taps])."""
    x, w, dy = f64(x, w, dy)
    T, taps = x.shape[1], w.shape[1]
    da = dy * dsilu(_shifted(x, w))
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    for j in range(taps):
        back = taps - 1 - j
        if back < T:
            dx[:, : T - back] += da[:, back:] * w[:, j]
            dw[:, j] = np.einsum("btc,btc->c", da[:, back:], x[:, : T - back])
    return dx, dw


def gdn_gates_fwd(a: Array, b: Array, a_log: Array, dt_bias: Array) -> tuple[Array, Array]:
    """a, b [N, Hv]: (log_decay = -exp(a_log)·softplus(a + dt_bias), beta = sigmoid(b))."""
    a, b, a_log, dt_bias = f64(a, b, a_log, dt_bias)
    return -np.exp(a_log) * softplus(a + dt_bias), sigmoid(b)


def gdn_gates_bwd(
    a: Array, b: Array, a_log: Array, dt_bias: Array, dlog_decay: Array, dbeta: Array
) -> tuple[Array, Array, Array, Array]:
    """(da, db [N, Hv], da_log, ddt_bias [Hv])."""
    a, b, a_log, dt_bias, dlog_decay, dbeta = f64(a, b, a_log, dt_bias, dlog_decay, dbeta)
    da = dlog_decay * -np.exp(a_log) * sigmoid(a + dt_bias)
    s = sigmoid(b)
    da_log = np.sum(dlog_decay * -np.exp(a_log) * softplus(a + dt_bias), axis=0)
    return da, dbeta * s * (1.0 - s), da_log, da.sum(axis=0)


def _sections(qkv: Array, Hk: int, Dk: int, Hv: int, Dv: int) -> tuple[Array, Array, Array]:
    n, keys = len(qkv), Hk * Dk
    return (
        qkv[:, :keys].reshape(n, Hk, Dk),
        qkv[:, keys : 2 * keys].reshape(n, Hk, Dk),
        qkv[:, 2 * keys :].reshape(n, Hv, Dv),
    )


def gdn_l2norm_fwd(
    qkv: Array, *, Hk: int, Dk: int, Hv: int, Dv: int, eps: float = 1e-6
) -> tuple[Array, Array, Array]:
    """qkv [N, 2·Hk·Dk + Hv·Dv]: q, k of unit length (eps inside the root), q also times 1/sqrt(Dk); v."""
    (qkv,) = f64(qkv)
    q, k, v = _sections(qkv, Hk, Dk, Hv, Dv)
    unit = [x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps) for x in (q, k)]
    return unit[0] / np.sqrt(Dk), unit[1], v.copy()


def gdn_l2norm_bwd(
    qkv: Array, dq: Array, dk: Array, dv: Array, *, Hk: int, Dk: int, Hv: int, Dv: int, eps: float = 1e-6
) -> Array:
    """dqkv, from the gradients at q, k [N, Hk, Dk] and v [N, Hv, Dv]."""
    qkv, dq, dk, dv = f64(qkv, dq, dk, dv)
    q, k, _ = _sections(qkv, Hk, Dk, Hv, Dv)
    parts = []
    for x, d in ((q, dq / np.sqrt(Dk)), (k, dk)):
        r = 1.0 / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps)
        parts.append(r * d - r**3 * x * np.sum(d * x, axis=-1, keepdims=True))
    return np.concatenate([p.reshape(len(qkv), -1) for p in (*parts, dv)], axis=1)


def _dense(*arrays: Array) -> list[Array]:
    """Float64 and contiguous, so that numba compiles one version."""
    return [np.ascontiguousarray(a, np.float64) for a in arrays]


def gdn_recurrence_fwd(q: Array, k: Array, v: Array, log_decay: Array, beta: Array) -> Array:
    """q, k [B, T, Hk, Dk], v [B, T, Hv, Dv], log_decay and beta [B, T, Hv]: o [B, T, Hv, Dv].

    Per value head: S decays, S += k ⊗ beta·(v - Sᵀk), o = Sᵀq. Value head h reads key head h // (Hv / Hk).
    """
    q, k, v, log_decay, beta = _dense(q, k, v, log_decay, beta)
    o: Array = _forward(q, k, v, np.exp(log_decay), beta)
    return o


def gdn_recurrence_bwd(
    q: Array, k: Array, v: Array, log_decay: Array, beta: Array, do: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """(dq, dk [B, T, Hk, Dk], dv [B, T, Hv, Dv], dlog_decay, dbeta [B, T, Hv])."""
    q, k, v, log_decay, beta, do = _dense(q, k, v, log_decay, beta, do)
    return _backward(q, k, v, np.exp(log_decay), beta, do)  # type: ignore[no-any-return]


@numba.njit(cache=True)
def _update(S, decay, k, v, beta, gap, after):  # type: ignore[no-untyped-def]
    """One token: gap = v - (decay·S)ᵀk, after = decay·S + k ⊗ beta·gap; `after` may be S itself."""
    Dk, Dv = S.shape
    for j in range(Dv):
        gap[j] = v[j]
    for i in range(Dk):
        for j in range(Dv):
            gap[j] -= k[i] * (decay * S[i, j])
    for i in range(Dk):
        for j in range(Dv):
            after[i, j] = decay * S[i, j] + k[i] * (beta * gap[j])


@numba.njit(cache=True)
def _forward(q, k, v, decay, beta):  # type: ignore[no-untyped-def]
    B, T, Hv, Dv = v.shape
    Dk = q.shape[3]
    rep = Hv // q.shape[2]
    o = np.zeros_like(v)
    gap = np.empty(Dv)
    for b in range(B):
        for h in range(Hv):
            S = np.zeros((Dk, Dv))
            for t in range(T):
                _update(S, decay[b, t, h], k[b, t, h // rep], v[b, t, h], beta[b, t, h], gap, S)
                for i in range(Dk):
                    for j in range(Dv):
                        o[b, t, h, j] += q[b, t, h // rep, i] * S[i, j]
    return o


@numba.njit(cache=True)
def _token_bwd(S, after, dS, decay, q, k, beta, gap, do, dq, dk):  # type: ignore[no-untyped-def]
    """One token backwards: dS, the gradient at `after`, becomes the one at S; adds to dq and dk.

    Returns the gradient at beta·gap [Dv] and at ln(decay).
    """
    Dk, Dv = S.shape
    ddelta = np.zeros(Dv)
    for i in range(Dk):
        for j in range(Dv):
            dq[i] += after[i, j] * do[j]
            dS[i, j] += q[i] * do[j]
            ddelta[j] += k[i] * dS[i, j]
    dlog = 0.0
    for i in range(Dk):
        for j in range(Dv):
            decayed = decay * S[i, j]
            dk[i] += beta * (dS[i, j] * gap[j] - decayed * ddelta[j])
            d = dS[i, j] - k[i] * (beta * ddelta[j])
            dlog += d * decayed
            dS[i, j] = decay * d
    return ddelta, dlog


@numba.njit(cache=True)
def _backward(q, k, v, decay, beta, do):  # type: ignore[no-untyped-def]
    B, T, Hv, Dv = v.shape
    Dk = q.shape[3]
    rep = Hv // q.shape[2]
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    dlog, dbeta = np.zeros_like(beta), np.zeros_like(beta)
    states, gaps = np.zeros((T + 1, Dk, Dv)), np.empty((T, Dv))
    for b in range(B):
        for h in range(Hv):
            g = h // rep
            for t in range(T):
                _update(
                    states[t], decay[b, t, h], k[b, t, g], v[b, t, h], beta[b, t, h], gaps[t], states[t + 1]
                )
            dS = np.zeros((Dk, Dv))
            for t in range(T - 1, -1, -1):
                ddelta, dlog[b, t, h] = _token_bwd(
                    states[t],
                    states[t + 1],
                    dS,
                    decay[b, t, h],
                    q[b, t, g],
                    k[b, t, g],
                    beta[b, t, h],
                    gaps[t],
                    do[b, t, h],
                    dq[b, t, g],
                    dk[b, t, g],
                )
                dbeta[b, t, h] = np.sum(ddelta * gaps[t])
                dv[b, t, h] = beta[b, t, h] * ddelta
    return dq, dk, dv, dlog, dbeta
