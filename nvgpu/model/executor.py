"""Runs a net on windows of tokens: forward with the layer inputs kept, then layer by layer in reverse.

One layer's intermediates live at a time: the backward recomputes a layer's forward from its kept input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nvgpu.gpu import Buffer, Profiler, Recorder
from nvgpu.layers.norm import norm_backward, norm_forward
from nvgpu.layers.workspace import Workspace
from nvgpu.model.net import Net

_GSCALE = 4096.0

Ids = np.ndarray[Any, np.dtype[np.uint32]]


class Executor:
    """A net, its scratch memory and its recorder, for batches of up to `windows` windows.

    Every method takes ids as `[windows * T]`, T being the net's window.
    """

    def __init__(
        self, net: Net, workspace: Workspace | None = None, profiler: Profiler | None = None
    ) -> None:
        self.net = net
        self.ws = workspace or Workspace(net.device)
        # gradients that GEMMs round to f16 are kept in its range by a power of two
        self.gscale = _GSCALE if net.options.on_matrix_units(net.device) else 1.0
        self.rec = Recorder(net.device, profiler, "mixed" if net.options.mixed else "f32")

    def layer_input(self, layer: int, rows: int) -> Buffer:
        """Kept input of a layer; the one past the last layer is the input of the final norm."""
        return self.ws.buf(f"kept.{layer}", (rows, self.net.geometry.hidden_size))

    def forward(self, ids: Ids) -> Buffer:
        """Hidden states after the final norm, `[N, hidden_size]`."""
        net, rows = self.net, len(ids)
        with self.rec.phase("embed"):
            net.embedding.forward(self.rec, self.ws, ids, self.layer_input(0, rows))
        with self.rec.phase("forward"):
            for i in range(net.geometry.num_layers):
                block = net.block(self.rec, i)
                block.forward(self.rec, self.ws, self.layer_input(i, rows), self.layer_input(i + 1, rows))
        last, g = self.layer_input(net.geometry.num_layers, rows), net.geometry
        with self.rec.phase("head"):
            return norm_forward(self.rec, self.ws, "final", net.final_norm, last, g.eps, g.gemma)

    def backward(self, ids: Ids, dhidden: Buffer) -> None:
        """Accumulate every trainable gradient, given the gradient at the final norm's output."""
        net, rows, last = self.net, len(ids), self.net.geometry.num_layers
        shape = (rows, net.geometry.hidden_size)
        dy, dx = self.ws.buf("grad.0", shape), self.ws.buf("grad.1", shape)
        end, gemma = self.layer_input(last, rows), net.geometry.gemma
        with self.rec.phase("head"):
            norm_backward(self.rec, self.ws, "final", net.final_norm, end, dhidden, dy, gemma)
        for i in reversed(range(last)):
            x = self.layer_input(i, rows)
            block = net.block(self.rec, i)
            with self.rec.phase("recompute"):
                saved = block.forward(self.rec, self.ws, x, self.ws.buf("recomputed", shape))
            with self.rec.phase("backward"):
                block.backward(self.rec, self.ws, saved, x, dy, dx)
            dy, dx = dx, dy

    def topk(self, ids: Ids, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Next-token top-k of every row: ids u32 `[N, k]` and probabilities f32 `[N, k]` that sum to 1."""
        found = self.net.head.topk(self.rec, self.ws, self.forward(ids), k)
        self.ws.collect()
        return found

    def topk_of(
        self, parts: Sequence[Ids], k: int
    ) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """`topk` of several batches, layer by layer: a streamed layer is uploaded once for all of them."""
        net, width = self.net, self.net.geometry.hidden_size
        held = [
            [self.ws.buf(f"part.{j}.{side}", (len(ids), width)) for side in "ab"]
            for j, ids in enumerate(parts)
        ]
        for ids, (x, _) in zip(parts, held, strict=True):
            net.embedding.forward(self.rec, self.ws, ids, x)
        for i in range(net.geometry.num_layers):
            block = net.block(self.rec, i)
            for pair in held:
                block.forward(self.rec, self.ws, *pair)
                pair.reverse()
        for x, _ in held:
            g = net.geometry
            hidden = norm_forward(self.rec, self.ws, "final", net.final_norm, x, g.eps, g.gemma)
            yield net.head.topk(self.rec, self.ws, hidden, k)
        self.ws.collect()

    def loss(
        self, ids: Ids, top_ids: np.ndarray[Any, Any], top_p: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """KL(top-k teacher ‖ net) of every row, `[N]`."""
        rows = len(ids)
        hidden = self.forward(ids)
        targets = self._targets(top_ids, top_p)
        loss = self.ws.buf("loss", (rows,))
        self.net.head.loss_only(self.rec, self.ws, hidden, *targets, loss)
        return self._read(loss)

    def evaluate(
        self, ids: Ids, targets: Ids, teacher: Executor | None
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
        """Negative log-likelihood of `targets` and, with a teacher, full-vocabulary KL(teacher ‖ net), each `[N]`."""
        rows = len(ids)
        hidden = self.forward(ids)
        wanted, nll = self.ws.buf("eval.targets", (rows,), "u32"), self.ws.buf("eval.nll", (rows,))
        wanted.write(targets)
        self.net.head.nll(self.rec, self.ws, hidden, wanted, nll)
        if teacher is None:
            return self._read(nll), None
        reference = teacher.forward(ids)
        teacher.rec.flush()
        kl = self.ws.buf("eval.kl", (rows,))
        self.net.head.kl_full(self.rec, self.ws, hidden, teacher.net.head, reference, kl)
        return self._read(nll), self._read(kl)

    def step(
        self,
        ids: Ids,
        top_ids: np.ndarray[Any, Any],
        top_p: np.ndarray[Any, Any],
        row_weight: np.ndarray[Any, Any],
    ) -> np.ndarray[Any, Any]:
        """Forward and backward of sum(row_weight * KL); returns the KL of every row, `[N]`.

        Gradients accumulate, `gscale` times as large as they are.
        """
        rows, shape = len(ids), (len(ids), self.net.geometry.hidden_size)
        hidden = self.forward(ids)
        targets = self._targets(top_ids, top_p)
        weight = self.ws.buf("row_weight", (rows,))
        weight.write(row_weight * np.float32(self.gscale))
        loss, dhidden = self.ws.buf("loss", (rows,)), self.ws.buf("dhidden", shape)
        with self.rec.phase("head"):
            self.net.head.loss_and_grad(self.rec, self.ws, hidden, *targets, weight, loss, dhidden)
        if self.net.signs is not None:
            self.net.signs.guard(self.rec, loss)
        self.backward(ids, dhidden)
        return self._read(loss)

    def _targets(self, top_ids: np.ndarray[Any, Any], top_p: np.ndarray[Any, Any]) -> tuple[Buffer, Buffer]:
        ids = self.ws.buf("target.ids", top_ids.shape, "u32")
        p = self.ws.buf("target.p", top_p.shape)
        with self.rec.phase("targets"):
            self.rec.flush()  # queued writes precede the next submission: nothing recorded may still read the old targets
            ids.write(top_ids)
            p.write(top_p)
        return ids, p

    def _read(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        with self.rec.phase("result"):
            self.rec.flush()
            values = buffer.read()
        self.ws.collect()
        return values

    def free(self) -> None:
        self.ws.free()
