"""The gated delta recurrence cut into chunks: what each stage of the device's form must give, in float64.

`gdn.py` has the recurrence itself; here `states[b, h, c]` is its state at the start of chunk c, and `dstates[b, h, c]` the
gradient at its state behind chunk c. In a chunk with G_t the sum of the log decays up to and with token t:

    gap_t   = v_t - exp(G_t) stateᵀk_t - sum_{s<t} exp(G_t - G_s) (k_t·k_s) beta_s gap_s
    o_t     =       exp(G_t) stateᵀq_t + sum_{s<=t} exp(G_t - G_s) (q_t·k_s) beta_s gap_s

`rates[b, t, h]` = (beta, exp(G_t), exp(G_last - G_t), log decay).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nvgpu.ref.elementwise import f64

Array = np.ndarray[Any, Any]


def _chunks(T: int, chunk: int) -> Iterator[tuple[int, slice]]:
    """(number, tokens) of every chunk; the last one may be shorter."""
    for c in range(-(-T // chunk)):
        yield c, slice(c * chunk, min((c + 1) * chunk, T))


def _per_value_head(x: Array, Hv: int) -> Array:
    """[B, T, Hk, D] with every key head repeated for the value heads it serves."""
    return np.repeat(x, Hv // x.shape[2], axis=2)


def _decay_between(log_decay: Array) -> Array:
    """[..., t, s] = exp(sum of the log decays behind s up to t), 0 for s > t; log_decay [..., L]."""
    sums = np.cumsum(log_decay, axis=-1)
    return np.tril(np.exp(np.minimum(sums[..., :, None] - sums[..., None, :], 0.0)))


def gdn_pairs(q: Array, k: Array, log_decay: Array, beta: Array, *, chunk: int) -> tuple[Array, Array]:
    """q, k [B, T, Hk, Dk], log_decay, beta [B, T, Hv]: (pairs [B, T, Hv, 2, chunk], rates [B, T, Hv, 4]).

    pairs[b, t, h]: decayed k_t·k_s for s < t, then q_t·k_s for s <= t, s over the tokens of t's chunk; 0 elsewhere.
    """
    q, k, log_decay, beta = f64(q, k, log_decay, beta)
    B, T, Hv = beta.shape
    q, k = _per_value_head(q, Hv), _per_value_head(k, Hv)
    pairs, rates = np.zeros((B, T, Hv, 2, chunk)), np.zeros((B, T, Hv, 4))
    for _, at in _chunks(T, chunk):
        log = log_decay[:, at].transpose(0, 2, 1)
        decay = _decay_between(log)
        for kind, left in enumerate((k, q)):
            products = np.einsum("bthi,bshi->bhts", left[:, at], k[:, at]) * decay
            pairs[:, at, :, kind, : log.shape[-1]] = np.tril(products, kind - 1).transpose(0, 2, 1, 3)
        rates[:, at, :, 1] = np.exp(np.cumsum(log_decay[:, at], axis=1))
        rates[:, at, :, 2] = decay[:, :, -1].transpose(0, 2, 1)
    rates[..., 0], rates[..., 3] = beta, log_decay
    return pairs, rates


def gdn_states(k: Array, v: Array, rates: Array, *, chunk: int) -> tuple[Array, Array]:
    """(gap [B, T, Hv, Dv], states [B, Hv, NC, Dk, Dv]), token by token."""
    k, v, rates = f64(k, v, rates)
    B, T, Hv, Dv = v.shape
    k = _per_value_head(k, Hv)
    gap, state = np.zeros_like(v), np.zeros((B, Hv, k.shape[3], Dv))
    states = []
    for t in range(T):
        if t % chunk == 0:
            states.append(state)
        state = np.exp(rates[:, t, :, 3, None, None]) * state
        gap[:, t] = v[:, t] - np.einsum("bhi,bhij->bhj", k[:, t], state)
        state = state + k[:, t, :, :, None] * (rates[:, t, :, 0, None] * gap[:, t])[:, :, None]
    return gap, np.stack(states, axis=2)


def gdn_out(q: Array, rates: Array, pairs: Array, gap: Array, states: Array) -> Array:
    """o [B, T, Hv, Dv]."""
    q, rates, pairs, gap, states = f64(q, rates, pairs, gap, states)
    _, T, Hv, _ = gap.shape
    q = _per_value_head(q, Hv)
    o = np.zeros_like(gap)
    for c, at in _chunks(T, pairs.shape[-1]):
        delta = rates[:, at, :, 0, None] * gap[:, at]
        o[:, at] = rates[:, at, :, 1, None] * np.einsum("bthi,bhij->bthj", q[:, at], states[:, :, c])
        o[:, at] += np.einsum("bths,bshj->bthj", pairs[:, at, :, 1, : delta.shape[1]], delta)
    return o


def gdn_states_bwd(
    q: Array, k: Array, rates: Array, dout: Array, *, chunk: int
) -> tuple[Array, Array, Array]:
    """(ddelta, dv = beta ddelta [B, T, Hv, Dv], dstates [B, Hv, NC, Dk, Dv]), token by token; delta = beta gap."""
    q, k, rates, dout = f64(q, k, rates, dout)
    B, T, Hv, Dv = dout.shape
    q, k = _per_value_head(q, Hv), _per_value_head(k, Hv)
    ddelta, dstate = np.zeros_like(dout), np.zeros((B, Hv, k.shape[3], Dv))
    dstates = []
    for t in reversed(range(T)):
        if t == T - 1 or (t + 1) % chunk == 0:
            dstates.append(dstate)
        dstate = dstate + q[:, t, :, :, None] * dout[:, t, :, None]
        ddelta[:, t] = np.einsum("bhi,bhij->bhj", k[:, t], dstate)
        dstate = dstate - k[:, t, :, :, None] * (rates[:, t, :, 0, None] * ddelta[:, t])[:, :, None]
        dstate = np.exp(rates[:, t, :, 3, None, None]) * dstate
    return ddelta, rates[..., :1] * ddelta, np.stack(dstates[::-1], axis=2)


def gdn_pairs_bwd(
    dout: Array, gap: Array, ddelta: Array, rates: Array, pairs: Array
) -> tuple[Array, Array, Array]:
    """(dpairs [B, T, Hv, 2, L] at the products without their decay, dlog_decay by way of the products, dbeta [B, T, Hv])."""
    dout, gap, ddelta, rates, pairs = f64(dout, gap, ddelta, rates, pairs)
    dpairs, dlog = np.zeros_like(pairs), np.zeros(gap.shape[:3])
    for _, at in _chunks(gap.shape[1], pairs.shape[-1]):
        log, n = rates[:, at, :, 3].transpose(0, 2, 1), gap[:, at].shape[1]
        delta = rates[:, at, :, 0, None] * gap[:, at]
        dgap = rates[:, at, :, 0, None] * ddelta[:, at]
        dkk = np.tril(-np.einsum("bthj,bshj->bhts", dgap, delta), -1)
        dqk = np.tril(np.einsum("bthj,bshj->bhts", dout[:, at], delta))
        through = np.zeros_like(dkk)
        for kind, d in enumerate((dkk, dqk)):
            dpairs[:, at, :, kind, :n] = (d * _decay_between(log)).transpose(0, 2, 1, 3)
            through += d * pairs[:, at, :, kind, :n].transpose(0, 2, 1, 3)
        for r in range(n):
            dlog[:, at.start + r] = through[:, :, r:, :r].sum(axis=(2, 3))
    return dpairs, dlog, np.sum(ddelta * gap, axis=-1)


def gdn_reads(x: Array, rates: Array, states: Array, *, kind: int, chunk: int) -> Array:
    """reads[..., kind, :] [B, T, Hv, Dk], from x [B, T, Hv, Dv].

    kind 0: decayed state · dout, to dq; 1: -decayed state · dv, to dk; 2 (with dstates for states): dstate · what token t
    adds to the chunk's last state, to dk, from gap.
    """
    x, rates, states = f64(x, rates, states)
    factor = (rates[..., 1], -rates[..., 1], rates[..., 0] * rates[..., 2])[kind]
    reads = np.zeros((*x.shape[:3], states.shape[3]))
    for c, at in _chunks(x.shape[1], chunk):
        reads[:, at] = np.einsum("bhij,bthj->bthi", states[:, :, c], factor[:, at, :, None] * x[:, at])
    return reads


def gdn_carry(rates: Array, states: Array, dstates: Array, *, chunk: int) -> Array:
    """[B, T, Hv]: sum(state * dstate) times the chunk's whole decay, the same for all of its tokens."""
    rates, states, dstates = f64(rates, states, dstates)
    carry = np.zeros(rates.shape[:3])
    for c, at in _chunks(rates.shape[1], chunk):
        both = np.sum(states[:, :, c] * dstates[:, :, c], axis=(2, 3))
        carry[:, at] = (both * rates[:, at.stop - 1, :, 1])[:, None]
    return carry


def gdn_dqk(
    q: Array, k: Array, dpairs: Array, reads: Array, carry: Array, dlog_decay: Array
) -> tuple[Array, Array, Array]:
    """(dq, dk [B, T, Hv, Dk] per value head, dlog_decay [B, T, Hv] with the states' part added); reads [B, T, Hv, 3, Dk]."""
    q, k, dpairs, reads, carry, dlog_decay = f64(q, k, dpairs, reads, carry, dlog_decay)
    Hv = carry.shape[2]
    q, k = _per_value_head(q, Hv), _per_value_head(k, Hv)
    dq, dk, dlog = reads[:, :, :, 0].copy(), reads[:, :, :, 1] + reads[:, :, :, 2], dlog_decay + carry
    for _, at in _chunks(q.shape[1], dpairs.shape[-1]):
        n = q[:, at].shape[1]
        dkk, dqk = dpairs[:, at, :, 0, :n], dpairs[:, at, :, 1, :n]
        dq[:, at] += np.einsum("bths,bshi->bthi", dqk, k[:, at])
        dk[:, at] += np.einsum("bths,bthi->bshi", dqk, q[:, at])
        dk[:, at] += np.einsum("bths,bshi->bthi", dkk, k[:, at]) + np.einsum("bths,bthi->bshi", dkk, k[:, at])
        onward = np.sum(q[:, at] * reads[:, at, :, 0] + k[:, at] * reads[:, at, :, 1], axis=-1)
        away = np.sum(k[:, at] * reads[:, at, :, 2], axis=-1)
        for r in range(n):
            dlog[:, at.start + r] += onward[:, r:].sum(axis=1) + away[:, :r].sum(axis=1)
    return dq, dk, dlog
