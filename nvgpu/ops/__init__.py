"""The op table and its kernels: joins `gpu` and `ref`; knows shapes, no layers."""

from nvgpu.ops import attention, elementwise, gdn, gdn_scan, head, linear, norm, optim, signs, transposed
from nvgpu.ops.table import OPS, Op

__all__ = [
    "OPS",
    "Op",
    "attention",
    "elementwise",
    "gdn",
    "gdn_scan",
    "head",
    "linear",
    "norm",
    "optim",
    "signs",
    "transposed",
]
