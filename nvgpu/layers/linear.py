"""Linears behind one interface: dense f32, f16 plane, and binary low-rank straight from its packed signs.

Activation gradients are assigned, or accumulate with `acc`; parameter gradients accumulate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nvgpu.gpu import Buffer, Recorder
from nvgpu.layers.signs import PathSigns
from nvgpu.layers.workspace import Workspace
from nvgpu.ops import elementwise, linear

Array = np.ndarray[Any, Any]


class Linear(Protocol):
    """y `[N, out_features]` = x `[N, in_features]` · Wᵀ. Linears of one `role` share scratch: one of them is live at a time."""

    name: str
    role: str
    in_features: int
    out_features: int

    def forward(self, rec: Recorder, ws: Workspace, x: Buffer, y: Buffer) -> None:
        """Assign y."""
        ...

    def backward(
        self, rec: Recorder, ws: Workspace, x: Buffer, dy: Buffer, dx: Buffer, acc: bool = False
    ) -> None:
        """dx = dy · W (or +=), and the gradients of what trains; `forward` on the same x came last for this role."""
        ...


class DenseLinear:
    """Frozen weights `[out, in]`, f32 or f16 by the buffer's dtype."""

    def __init__(self, name: str, role: str, weight: Buffer) -> None:
        self.name = name
        self.role = role
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        half = weight.dtype == "f16"
        self._forward = linear.matmul_nt_f16 if half else linear.matmul_nt
        self._backward = linear.matmul_nn_f16 if half else linear.matmul_nn
        self._backward_acc = linear.matmul_nn_acc_f16 if half else linear.matmul_nn_acc

    def forward(self, rec: Recorder, ws: Workspace, x: Buffer, y: Buffer) -> None:
        self._forward(rec, x=x, w=self.weight, y=y)

    def backward(
        self, rec: Recorder, ws: Workspace, x: Buffer, dy: Buffer, dx: Buffer, acc: bool = False
    ) -> None:
        if acc:
            self._backward_acc(rec, x=dy, w=self.weight, y=dx, x0=0)
        else:
            self._backward(rec, x=dy, w=self.weight, y=dx)


class Tap(Protocol):
    """Sees the input `[N, in_features]` of a linear whenever it is recorded."""

    def __call__(self, rec: Recorder, name: str, x: Buffer) -> None: ...


class TappedLinear:
    """A linear whose inputs are shown to a tap in the forward."""

    def __init__(self, inner: Linear, tap: Tap) -> None:
        self.inner = inner
        self.tap = tap
        self.name, self.role = inner.name, inner.role
        self.in_features, self.out_features = inner.in_features, inner.out_features

    def forward(self, rec: Recorder, ws: Workspace, x: Buffer, y: Buffer) -> None:
        self.tap(rec, self.name, x)
        self.inner.forward(rec, ws, x, y)

    def backward(
        self, rec: Recorder, ws: Workspace, x: Buffer, dy: Buffer, dx: Buffer, acc: bool = False
    ) -> None:
        self.inner.backward(rec, ws, x, dy, dx, acc)


@dataclass(frozen=True)
class BlrPath:
    """One term diag(h)·U·diag(l)·V·diag(g): signs as words, scales as views of the flat parameters.

    The rank is padded to a multiple of 32 with l = 0. `dl` of the padding is not zero; the optimiser's mask drops it.
    Gradients are None where nothing trains.
    """

    u: Buffer  # u32 [m, rp / 32]
    v: Buffer  # u32 [rp, ceil(n / 32)]
    h: Buffer  # [m]
    l: Buffer  # [rp]
    g: Buffer  # [n]
    dh: Buffer | None
    dl: Buffer | None
    dg: Buffer | None
    # Uᵀ and Vᵀ, where products with rows of signs run faster
    ut: Buffer | None = None  # u32 [rp, ceil(m / 32)]
    vt: Buffer | None = None  # u32 [n, rp / 32]
    signs: PathSigns | None = None  # where U and V train

    def down(self, rec: Recorder, x: Buffer, t: Buffer) -> None:
        """t = (x ⊙ g)·Vᵀ."""
        if self.vt is None:
            linear.sign_matmul_nt(rec, x=x, cin=self.g, w=self.v, y=t)
        else:
            linear.sign_matmul_nn(rec, x=x, cin=self.g, w=self.vt, y=t, K=self.l.size)

    def up(self, rec: Recorder, t: Buffer, y: Buffer, *, acc: bool) -> None:
        """y (+)= h ⊙ ((t ⊙ l)·Uᵀ)."""
        if self.ut is None:
            op = linear.sign_matmul_nt_scaled_acc if acc else linear.sign_matmul_nt_scaled
            op(rec, x=t, cin=self.l, w=self.u, cout=self.h, y=y)
        else:
            op = linear.sign_matmul_nn_scaled_acc if acc else linear.sign_matmul_nn_scaled
            op(rec, x=t, cin=self.l, w=self.ut, cout=self.h, y=y, K=self.h.size)

    def up_unscaled(self, rec: Recorder, t: Buffer, u: Buffer) -> None:
        """u = (t ⊙ l)·Uᵀ."""
        if self.ut is None:
            linear.sign_matmul_nt(rec, x=t, cin=self.l, w=self.u, y=u)
        else:
            linear.sign_matmul_nn(rec, x=t, cin=self.l, w=self.ut, y=u, K=self.h.size)


class BlrLinear:
    """W = Σ over paths of diag(h)·U·diag(l)·V·diag(g), never formed."""

    def __init__(
        self, name: str, role: str, out_features: int, in_features: int, paths: Sequence[BlrPath]
    ) -> None:
        self.name = name
        self.role = role
        self.out_features = out_features
        self.in_features = in_features
        self.paths = tuple(paths)

    def _inner(self, ws: Workspace, i: int, rows: int) -> Buffer:
        """t of path i `[N, rp]`, kept from the forward for the backward."""
        return ws.buf(f"{self.role}.t{i}", (rows, self.paths[i].l.size))

    def forward(self, rec: Recorder, ws: Workspace, x: Buffer, y: Buffer) -> None:
        for i, p in enumerate(self.paths):
            t = self._inner(ws, i, x.shape[0])
            # 1. t = (x ⊙ g)·Vᵀ
            p.down(rec, x, t)
            # 2. y (+)= h ⊙ ((t ⊙ l)·Uᵀ)
            p.up(rec, t, y, acc=i > 0)

    def backward(
        self, rec: Recorder, ws: Workspace, x: Buffer, dy: Buffer, dx: Buffer, acc: bool = False
    ) -> None:
        rows = x.shape[0]
        for i, p in enumerate(self.paths):
            t, ds = self._inner(ws, i, rows), ws.buf("blr.ds", (rows, p.l.size))
            # 2. y (+)= h ⊙ ((t ⊙ l)·Uᵀ): ds = (dy ⊙ h)·U, dl = Σ ds·t, dh = Σ dy·((t ⊙ l)·Uᵀ)
            linear.sign_matmul_nn(rec, x=dy, cin=p.h, w=p.u, y=ds, K=p.l.size)
            if p.dl is not None:
                _accumulate(rec, ws, ds, t, p.dl)
            if p.dh is not None:
                u = ws.buf("blr.wide", (rows, self.out_features))
                p.up_unscaled(rec, t, u)
                _accumulate(rec, ws, dy, u, p.dh)
            # 1. t = (x ⊙ g)·Vᵀ: e = (ds ⊙ l)·V, dg = Σ x·e, dx (+)= g ⊙ e
            e = ws.buf("blr.wide", (rows, self.in_features))  # u is used up
            linear.sign_matmul_nn(rec, x=ds, cin=p.l, w=p.v, y=e, K=self.in_features)
            if p.dg is not None:
                _accumulate(rec, ws, x, e, p.dg)
            scale = linear.col_scale_acc if acc or i else linear.col_scale
            scale(rec, x=e, g=p.g, y=dx)
            # 3. the signs that gave all of this move on
            if p.signs is not None:
                p.signs.learn(rec, ws, (p.h, p.l, p.g), x, dy, ds, t)


def _accumulate(rec: Recorder, ws: Workspace, a: Buffer, b: Buffer, grad: Buffer) -> None:
    """grad `[C]` += column sums of a·b, both `[N, C]`."""
    rows, cols = a.shape[0], grad.size
    partial = ws.buf("blr.partial", (elementwise.row_chunks(rows), cols))
    linear.colsum_mul_partial(rec, a=a.reshaped(rows, cols), b=b.reshaped(rows, cols), partial=partial)
    elementwise.colsum_acc(rec, partial=partial, y=grad)


def transposed_words(words: Array, cols: int) -> Array:
    """u32 words `[cols, ceil(rows / 32)]` of the transposed signs of `words` `[rows, ceil(cols / 32)]`; the rest is 0."""
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=cols, bitorder="little")
    packed = np.packbits(bits.T, axis=1, bitorder="little")
    return words_from_bytes(packed, cols, words.shape[0])


def words_from_bytes(packed: Array, rows: int, cols: int) -> Array:
    """u32 words `[rows, ceil(cols / 32)]` from a BLR payload's bytes `[<= rows, <= cols / 8]`; the rest is 0."""
    words = np.zeros((rows, -(-cols // 32)), "<u4")
    words.view(np.uint8)[: packed.shape[0], : packed.shape[1]] = packed
    return words
