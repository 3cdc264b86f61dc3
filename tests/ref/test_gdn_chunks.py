"""The chunked stages of the gated delta recurrence give what the token-by-token definition gives, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from nvgpu.ref import gdn, gdn_chunks


@pytest.mark.parametrize("T", [1, 5, 8, 9, 27])
def test_stages_compose_to_the_recurrence(T: int) -> None:
    B, Hk, Hv, Dk, Dv, chunk = 2, 2, 4, 8, 12, 8
    rng = np.random.default_rng(T)
    q, k = rng.standard_normal((2, B, T, Hk, Dk))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    v, do = rng.standard_normal((2, B, T, Hv, Dv))
    log_decay, beta = -rng.exponential(1.0, (B, T, Hv)), rng.random((B, T, Hv))

    pairs, rates = gdn_chunks.gdn_pairs(q, k, log_decay, beta, chunk=chunk)
    gap, states = gdn_chunks.gdn_states(k, v, rates, chunk=chunk)
    o = gdn_chunks.gdn_out(q, rates, pairs, gap, states)
    np.testing.assert_allclose(o, gdn.gdn_recurrence_fwd(q, k, v, log_decay, beta), atol=1e-12)

    ddelta, dv, dstates = gdn_chunks.gdn_states_bwd(q, k, rates, do, chunk=chunk)
    sources = ((do, states), (dv, states), (gap, dstates))
    reads = [gdn_chunks.gdn_reads(x, rates, of, kind=i, chunk=chunk) for i, (x, of) in enumerate(sources)]
    carry = gdn_chunks.gdn_carry(rates, states, dstates, chunk=chunk)
    dpairs, dlog, dbeta = gdn_chunks.gdn_pairs_bwd(do, gap, ddelta, rates, pairs)
    dq, dk, dlog = gdn_chunks.gdn_dqk(q, k, dpairs, np.stack(reads, axis=3), carry, dlog)
    dq, dk = (x.reshape(B, T, Hk, Hv // Hk, Dk).sum(axis=3) for x in (dq, dk))
    for got, want in zip(
        (dq, dk, dv, dlog, dbeta), gdn.gdn_recurrence_bwd(q, k, v, log_decay, beta, do), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=1e-12)
