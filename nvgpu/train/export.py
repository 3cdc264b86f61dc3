"""Writing a trained student: a copy of its file in which only payload values change."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu.errors import InputError, TrainingError
from nvgpu.formats import codecs
from nvgpu.formats.blr import BlrTensor
from nvgpu.formats.cmf import CmfFile, CmfWriter
from nvgpu.formats.codecs import Dtype
from nvgpu.model.net import path_param

Array = np.ndarray[Any, Any]


def trained_payload(model: CmfFile, name: str, values: Mapping[str, Array]) -> Any:
    """The payload of a tensor with the trained `values` (by parameter name) in it; unchanged where none belong to it.

    Signs `NAME#0.u` and `NAME#0.v`, where they are there, are packed as in the payload.

    Raises:
        TrainingError: a value that f16 cannot hold.
    """
    entry = model.tensors[name]
    if name in values:
        return codecs.encode(values[name], entry.dtype, name)
    if entry.dtype == Dtype.BLR and path_param(name, 0, "h") in values:
        tensor = BlrTensor.parse(model.raw(name), f"{model.path}: tensor {name}")
        paths = tuple(
            replace(
                path,
                **{part: _half(values[path_param(name, i, part)], name) for part in "hlg"},
                **{part: values[key] for part in "uv" if (key := path_param(name, i, part)) in values},
            )
            for i, path in enumerate(tensor.paths)
        )
        return BlrTensor(tensor.m, tensor.n, tensor.rank, paths).pack()
    return model.raw(name)


def unstorable(model: CmfFile, values: Mapping[str, Array]) -> str | None:
    """The first parameter whose trained values its tensor's type cannot hold, as text; None where all fit."""
    for name, array in values.items():
        dtype = model.entry(name.partition("#")[0]).dtype
        try:
            codecs.encode(array, Dtype.F16 if dtype == Dtype.BLR else dtype, name)
        except InputError as e:
            return str(e)
    return None


def _half(values: Array, name: str) -> Array:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise TrainingError(f"tensor {name}: a trained scale exceeds the range of f16")
    return half


def export(student: CmfFile, output: Path, values: Mapping[str, Array], record: Mapping[str, Any]) -> None:
    """Write `student` to `output` with trained `values`; `record` becomes `provenance.nvg_train`."""
    header = copy.deepcopy(dict(student.header))
    header["provenance"] = {**(header.get("provenance") or {}), "nvg_train": dict(record)}
    entries = [(name, entry.dtype, entry.shape) for name, entry in student.tensors.items()]
    with CmfWriter(output, header, entries, student.tokenizer_json) as writer:
        for name in student.tensors:
            writer.write(name, trained_payload(student, name, values))
