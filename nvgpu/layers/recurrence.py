"""The gated delta recurrence over whole windows, in groups of scans whose states fit a budget.

Activation gradients are assigned. A scan is one (window, value head).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nvgpu.gpu import Buffer, Recorder
from nvgpu.layers.workspace import Workspace
from nvgpu.ops import gdn_scan

STATES_BYTES = 256 << 20


@dataclass(frozen=True)
class RecurrenceSaved:
    """What the backward needs."""

    q: Buffer  # [N, Hk, Dk]
    k: Buffer  # [N, Hk, Dk]
    v: Buffer  # [N, Hv, Dv]
    rates: Buffer  # [N, Hv, 4]
    pairs: Buffer  # [N, Hv, 2, CHUNK]
    gap: Buffer  # [N, Hv, Dv]
    # states: in the workspace if one group held them all, else step 2 of the backward makes them anew


@dataclass(frozen=True)
class Recurrence:
    """S decays, S += k ⊗ beta (v - Sᵀk), o = Sᵀq, from S = 0 in every window of `window` tokens.

    `states_bytes` bounds the states at chunk starts, and once more their gradients, that are held at a time; one scan is the
    least.
    """

    window: int  # T
    states_bytes: int = STATES_BYTES

    def forward(
        self,
        rec: Recorder,
        ws: Workspace,
        q: Buffer,
        k: Buffer,
        v: Buffer,
        log_decay: Buffer,
        beta: Buffer,
        o: Buffer,
    ) -> RecurrenceSaved:
        """q, k `[N, Hk, Dk]`, v, o `[N, Hv, Dv]`, gates `[N, Hv]`: o is assigned."""
        heads = log_decay.shape
        rates, pairs = (
            ws.buf("early/gdn.scan_rates", (*heads, 4)),
            ws.buf("early/gdn.scan_pairs", (*heads, 2, gdn_scan.CHUNK)),
        )
        saved = RecurrenceSaved(q, k, v, rates, pairs, ws.buf("early/gdn.scan_gap", v.shape))
        # 1. decayed products of the tokens of a chunk
        gates: dict[str, Any] = {"log_decay": log_decay, "beta": beta}
        gdn_scan.gdn_pairs(rec, q=q, k=k, **gates, pairs=pairs, rates=rates, T=self.window)
        for group in self._groups(saved):
            # 2. states at the chunks' starts, gaps
            states = self._states(rec, ws, saved, group)
            # 3. o from both
            gdn_scan.gdn_out(rec, q=q, rates=rates, pairs=pairs, gap=saved.gap, states=states, o=o, **group)
        return saved

    def backward(
        self,
        rec: Recorder,
        ws: Workspace,
        saved: RecurrenceSaved,
        do: Buffer,
        dq: Buffer,
        dk: Buffer,
        dv: Buffer,
        dlog_decay: Buffer,
        dbeta: Buffer,
    ) -> None:
        """dq, dk `[N, Hv, Dk]` per value head, dv `[N, Hv, Dv]`, gate gradients `[N, Hv]`; `forward` came last."""
        s, heads = saved, dlog_decay.shape
        ddelta, carry = ws.buf("late/gdn.scan_ddelta", s.gap.shape), ws.buf("late/gdn.scan_carry", heads)
        reads = ws.buf("late/gdn.scan_reads", (*heads, 3, s.k.shape[2]))
        ins: dict[str, Any] = {"q": s.q, "k": s.k, "rates": s.rates, "pairs": s.pairs, "dout": do}
        groups = list(self._groups(s))
        for group in groups:
            # 3. o from states and gaps, 2. states from chunk to chunk
            shape = self._states_shape(s, group)
            states, dstates = ws.buf("early/gdn.scan_states", shape), ws.buf("late/gdn.scan_dstates", shape)
            if len(groups) > 1:
                self._states(rec, ws, s, group)
            gdn_scan.gdn_states_bwd(rec, **ins, ddelta=ddelta, dv=dv, dstates=dstates, **group)
            for kind, (x, of) in enumerate(((do, states), (dv, states), (s.gap, dstates))):
                gdn_scan.gdn_reads(rec, x=x, rates=s.rates, states=of, reads=reads, kind=kind, **group)
            gdn_scan.gdn_carry(rec, rates=s.rates, states=states, dstates=dstates, carry=carry, **group)
        # 1. decayed products of the tokens of a chunk; then what states and products give q, k and the decays
        dpairs = ws.buf("late/gdn.scan_dpairs", s.pairs.shape)
        ins = {"dout": do, "gap": s.gap, "ddelta": ddelta, "rates": s.rates, "pairs": s.pairs}
        gdn_scan.gdn_pairs_bwd(rec, **ins, dpairs=dpairs, dlog_decay=dlog_decay, dbeta=dbeta, T=self.window)
        ins = {"q": s.q, "k": s.k, "dpairs": dpairs, "reads": reads, "carry": carry}
        gdn_scan.gdn_dqk(rec, **ins, dq=dq, dk=dk, dlog_decay=dlog_decay, T=self.window)

    def _groups(self, s: RecurrenceSaved) -> Iterator[dict[str, Any]]:
        """Dimensions of each group of scans: G of them from scan0 on."""
        rows, value_heads, value_dim = s.v.shape
        scans = rows // self.window * value_heads
        per_scan = 4 * gdn_scan.chunks(self.window) * s.k.shape[2] * value_dim
        size = max(self.states_bytes // per_scan, 1)
        for first in range(0, scans, size):
            yield {"scan0": first, "G": min(size, scans - first), "T": self.window, "L": gdn_scan.CHUNK}

    def _states_shape(self, s: RecurrenceSaved, group: dict[str, Any]) -> tuple[int, ...]:
        return group["G"], gdn_scan.chunks(self.window), s.k.shape[2], s.v.shape[2]

    def _states(self, rec: Recorder, ws: Workspace, s: RecurrenceSaved, group: dict[str, Any]) -> Buffer:
        """The group's states `[G, chunks, Dk, Dv]`, made along with its gaps."""
        states = ws.buf("early/gdn.scan_states", self._states_shape(s, group))
        gdn_scan.gdn_states(
            rec, k=s.k, v=s.v, rates=s.rates, pairs=s.pairs, gap=s.gap, states=states, **group
        )
        return states
