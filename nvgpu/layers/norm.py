"""RMSNorm over rows; the activation gradient is assigned, the gain's accumulates."""

from __future__ import annotations

from nvgpu.gpu import Buffer, Recorder
from nvgpu.layers.gain import Gain
from nvgpu.layers.workspace import Workspace
from nvgpu.ops import elementwise, norm


def norm_forward(
    rec: Recorder, ws: Workspace, name: str, gain: Gain, x: Buffer, eps: float, gemma: bool
) -> Buffer:
    """The normed rows of x `[N, C]`: scratch that lives, like the statistics, until `name` is normed again."""
    y, rstd = ws.buf(f"{name}.y", x.shape), ws.buf(f"{name}.rstd", x.shape[:1])
    norm.rms_norm_fwd(rec, x=x, w=gain.w, y=y, rstd=rstd, eps=eps, gemma=int(gemma))
    return y


def norm_backward(
    rec: Recorder, ws: Workspace, name: str, gain: Gain, x: Buffer, dy: Buffer, dx: Buffer, gemma: bool
) -> None:
    """dx `[N, C]` from dy `[N, C]`; `norm_forward` on the same x came last for `name`."""
    rows, width = x.shape
    rstd = ws.buf(f"{name}.rstd", (rows,))
    norm.rms_norm_bwd(rec, x=x, w=gain.w, rstd=rstd, dy=dy, dx=dx, gemma=int(gemma))
    if gain.g is not None:
        partial = ws.buf("norm.partial", (elementwise.row_chunks(rows), width))
        norm.rms_norm_dw_partial(rec, x=x, rstd=rstd, dy=dy, partial=partial)
        elementwise.colsum_acc(rec, partial=partial, y=gain.g)
