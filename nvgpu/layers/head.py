"""The head: logits in row chunks over slices of the vocabulary, and the losses on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nvgpu.errors import InputError
from nvgpu.gpu import Buffer, Device, Recorder
from nvgpu.layers.workspace import Workspace
from nvgpu.ops import elementwise, linear
from nvgpu.ops import head as ops

Array = np.ndarray[Any, Any]

_ROWS = 64  # chunks hold a multiple of it, so that a chunk of a vector starts on a view's boundary
_LOGITS_BYTES = 256 << 20
_LOGITS_BYTES_CPU = 64 << 20


class Rows(Protocol):
    """Weights `[V, C]` by rows: an array, or something that decodes the rows it is asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice, /) -> Array: ...


@dataclass(frozen=True)
class _Slice:
    """Weights `[Vs, C]` of the vocabulary from `first` on."""

    first: int
    weight: Buffer


class Head:
    """Output weights `[V, C]`, as f16 with `half`, else as f32; no gradient.

    `slice_bytes` bounds one slice of the weights, `logits_bytes` the logits of a chunk of rows (64 at least).
    In the methods hidden is `[N, C]` and N is every other buffer's first axis.
    """

    def __init__(
        self,
        device: Device,
        weights: Rows,
        *,
        half: bool = False,
        slice_bytes: int | None = None,
        logits_bytes: int | None = None,
    ) -> None:
        self.device = device
        self.vocab, self.width = weights.shape
        budget = min(
            logits_bytes or (_LOGITS_BYTES_CPU if device.is_cpu else _LOGITS_BYTES), device.max_binding
        )
        self._rows_at_once = max(budget // (4 * self.vocab) // _ROWS, 1) * _ROWS
        self._half = half
        self._forward = linear.matmul_nt_into_f16 if half else linear.matmul_nt_into
        self._backward = linear.matmul_nn_acc_f16 if half else linear.matmul_nn_acc
        self._slices = list(
            _upload(device, weights, half, min(slice_bytes or device.max_binding, device.max_binding))
        )

    def topk(self, rec: Recorder, ws: Workspace, hidden: Buffer, k: int) -> tuple[Array, Array]:
        """The k likeliest tokens of every row, on the host: ids u32 and renormalised f32 p, both `[N, k]`.

        Raises:
            InputError: more than 256 or than the vocabulary holds, or logits that are not finite.
        """
        if not 1 <= k <= min(ops.MAX_K, self.vocab):
            raise InputError(f"top-k: found {k}, expected 1 to {min(ops.MAX_K, self.vocab)}")
        n = hidden.shape[0]
        ids, probs = ws.buf("head.ids", (n, k), "u32"), ws.buf("head.probs", (n, k))
        for rows in self._chunks(n):
            logits = self._logits(rec, ws, "head.logits", _part(hidden, rows))
            ops.topk(rec, logits=logits, ids=_part(ids, rows), probs=_part(probs, rows))
        rec.flush()
        found = ids.read(), probs.read()
        finite = np.isfinite(found[1]).all(axis=1)
        if not finite.all():
            raise InputError(
                f"top-k: the model's logits are not finite (row {int(np.argmin(finite))} of {n})"
            )
        return found

    def loss_only(
        self, rec: Recorder, ws: Workspace, hidden: Buffer, ids: Buffer, p: Buffer, loss: Buffer
    ) -> None:
        """loss `[N]` = KL(p ‖ softmax) of every row; ids u32 and p, both `[N, K]`."""
        for rows in self._chunks(hidden.shape[0]):
            logits, lse = self._logits_lse(rec, ws, "head", _part(hidden, rows))
            ops.kl_topk_loss(
                rec,
                logits=logits,
                lse=lse,
                ids=_part(ids, rows),
                probs=_part(p, rows),
                loss=_part(loss, rows),
            )

    def loss_and_grad(
        self,
        rec: Recorder,
        ws: Workspace,
        hidden: Buffer,
        ids: Buffer,
        p: Buffer,
        weight: Buffer,
        loss: Buffer,
        dhidden: Buffer,
    ) -> None:
        """loss as in `loss_only`, ids distinct in a row; dhidden = the gradient of sum(weight * loss)."""
        for rows in self._chunks(hidden.shape[0]):
            # 1. logits, loss, and the logits' gradient in their place
            dlogits, lse = self._logits_lse(rec, ws, "head", _part(hidden, rows))
            ops.kl_topk(
                rec,
                logits=dlogits,
                lse=lse,
                ids=_part(ids, rows),
                probs=_part(p, rows),
                weight=_part(weight, rows),
                loss=_part(loss, rows),
            )
            # 2. dhidden = dlogits · W, slice by slice
            dx = _part(dhidden, rows)
            rec.clear(dx)
            for s in self._slices:
                self._slice_backward(rec, ws, dlogits, s, dx)

    def _slice_backward(self, rec: Recorder, ws: Workspace, dlogits: Buffer, s: _Slice, dx: Buffer) -> None:
        """dx += the slice's columns of dlogits, times its weights; few rows are spread over parts of the vocabulary."""
        rows = dx.shape[0]
        parts = linear.parts_for(rec, rows, self.width, s.weight.shape[0]) if self._half else 0
        if parts < 2 or s.first % 4 or self.vocab % 4:
            self._backward(rec, x=dlogits, w=s.weight, y=dx, x0=s.first)
            return
        sums = ws.buf("head.parts", (parts, rows, self.width))
        linear.matmul_nn_parts_f16(rec, x=dlogits, w=s.weight, y=sums, x0=s.first)
        elementwise.colsum_acc(rec, partial=sums.reshaped(parts, dx.size), y=dx.reshaped(dx.size))

    def nll(self, rec: Recorder, ws: Workspace, hidden: Buffer, targets: Buffer, nll: Buffer) -> None:
        """nll `[N]` = -ln softmax at the targets u32 `[N]`, each below the vocabulary."""
        for rows in self._chunks(hidden.shape[0]):
            logits, lse = self._logits_lse(rec, ws, "head", _part(hidden, rows))
            ops.nll(rec, logits=logits, lse=lse, targets=_part(targets, rows), nll=_part(nll, rows))

    def kl_full(
        self, rec: Recorder, ws: Workspace, hidden: Buffer, teacher: Head, teacher_hidden: Buffer, kl: Buffer
    ) -> None:
        """kl `[N]` = KL(teacher ‖ this) over the whole vocabulary.

        Raises:
            InputError: the teacher has another vocabulary.
        """
        if teacher.vocab != self.vocab:
            raise InputError(
                f"teacher: found a vocabulary of {teacher.vocab}, expected the student's {self.vocab}"
            )
        for rows in self._chunks(hidden.shape[0]):
            logits, lse = self._logits_lse(rec, ws, "head", _part(hidden, rows))
            t_logits, t_lse = teacher._logits_lse(rec, ws, "head.teacher", _part(teacher_hidden, rows))
            ops.kl_full(rec, t_logits=t_logits, s_logits=logits, t_lse=t_lse, s_lse=lse, kl=_part(kl, rows))

    def logits(self, rec: Recorder, ws: Workspace, hidden: Buffer) -> Array:
        """All logits on the host, f32 `[N, V]`; for few rows."""
        parts = []
        for rows in self._chunks(hidden.shape[0]):
            part = self._logits(rec, ws, "head.logits", _part(hidden, rows))
            rec.flush()
            parts.append(part.read())
        return np.concatenate(parts)

    def free(self) -> None:
        """Release the weights."""
        self.device.free(*(s.weight for s in self._slices))

    def _chunks(self, n: int) -> Iterator[slice]:
        for first in range(0, n, self._rows_at_once):
            yield slice(first, min(first + self._rows_at_once, n))

    def _logits(self, rec: Recorder, ws: Workspace, name: str, hidden: Buffer) -> Buffer:
        logits = ws.buf(name, (hidden.shape[0], self.vocab))
        for s in self._slices:
            self._forward(rec, x=hidden, w=s.weight, y=logits, y0=s.first)
        return logits

    def _logits_lse(self, rec: Recorder, ws: Workspace, name: str, hidden: Buffer) -> tuple[Buffer, Buffer]:
        logits = self._logits(rec, ws, f"{name}.logits", hidden)
        lse = ws.buf(f"{name}.lse", (hidden.shape[0],))
        ops.lse(rec, logits=logits, lse=lse)
        return logits, lse


def _part(buffer: Buffer, rows: slice) -> Buffer:
    """Rows of a buffer whose first axis is rows."""
    width = buffer.size // buffer.shape[0]
    return buffer.view((rows.stop - rows.start, *buffer.shape[1:]), rows.start * width)


def _upload(device: Device, weights: Rows, half: bool, slice_bytes: int) -> Iterator[_Slice]:
    vocab, width = weights.shape
    dtype = "f16" if half else "f32"
    count = max(slice_bytes // ((2 if half else 4) * width) // _ROWS, 1) * _ROWS
    for first in range(0, vocab, count):
        values = weights[first : first + count]
        if half and values.dtype != np.float16:
            with np.errstate(over="ignore"):
                values = values.astype(np.float16)
            if not np.isfinite(values).all():
                raise InputError("head weights exceed the range of f16; use --precision f32")
        yield _Slice(first, device.upload(f"head.{first}", values, dtype))
