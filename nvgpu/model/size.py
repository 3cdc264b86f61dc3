"""Bits per weight of a model file."""

from __future__ import annotations

import math

from nvgpu.errors import FormatError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.hf_config import ARCH_NAME
from nvgpu.model.geometry import Geometry
from nvgpu.model.net import body_linear_names


def body_bpw(model: CmfFile) -> float | None:
    """Payload bits of the body linears over their weights (a BLR header's 16 bytes are not counted, as in its bpw).

    None for a model of another family; FormatError for one of ours whose arch is wrong.
    """
    try:
        names = list(body_linear_names(Geometry.of(model)))
    except FormatError:
        if model.arch.get("arch_name") == ARCH_NAME:
            raise
        return None
    entries = [model.tensors[name] for name in names]
    bits = sum(8 * (e.nbytes - (16 if e.dtype == Dtype.BLR else 0)) for e in entries)
    return bits / sum(math.prod(e.shape) for e in entries)


def file_bpw(model: CmfFile) -> float:
    """Bits of the whole file, all shards, over all weights."""
    weights = sum(math.prod(entry.shape) for entry in model.tensors.values())
    return 8 * model.nbytes / max(weights, 1)
