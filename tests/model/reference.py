"""The float64 net of a CMF file."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.formats.blr import BlrTensor
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import Dtype
from nvgpu.layers.linear import words_from_bytes
from nvgpu.ref.net import RefNet

Array = np.ndarray[Any, Any]


def reference_net(model: CmfFile) -> RefNet:
    """Binary low-rank tensors as paths, everything else dense."""
    return RefNet.build({name: _weight(model, name) for name in model.tensors}, model.header["hf"]["config"])


def _weight(model: CmfFile, name: str) -> Array | list[Any]:
    if model.tensors[name].dtype != Dtype.BLR:
        return model.array(name)
    tensor = BlrTensor.parse(model.raw(name), name)
    return [
        (
            path.h,
            path.l,
            path.g,
            words_from_bytes(path.u, tensor.m, tensor.rank),
            words_from_bytes(path.v, tensor.rank, tensor.n),
        )
        for path in tensor.paths
    ]
