"""A model file with some of its matrices stored in another type; everything else keeps its bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu import __version__
from nvgpu.errors import InputError
from nvgpu.formats import codecs
from nvgpu.formats.cmf import CmfFile, TensorEntry
from nvgpu.formats.cmf_writer import model_writer
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.files import check_target
from nvgpu.formats.hf_config import SMALL_LINEARS
from nvgpu.model import names
from nvgpu.progress import Progress

Array = np.ndarray[Any, Any]

_EMBEDDINGS = (names.EMBED, names.LM_HEAD)
_SMALLEST = 32  # weights worth a quantised type
_COPIED_SECTIONS = ("masks", "index")


@dataclass(frozen=True)
class Recoded:
    """A tensor stored anew; `relative_error` is ||W - What|| / ||W|| against what was decoded from the source."""

    name: str
    before: Dtype
    after: Dtype
    bytes_before: int
    bytes_after: int
    relative_error: float


@dataclass
class RequantReport:
    """`fell_back`: matrices that the type cannot hold; `left`: tensors that were named but are no matrices."""

    outputs: list[Path]
    changed: list[Recoded] = field(default_factory=list)
    fell_back: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0


def requant(
    source: CmfFile,
    output: Path,
    *,
    dtype: Dtype,
    only: Sequence[str] = (),
    shard_bytes: int | None = None,
    progress: Progress | None = None,
) -> RequantReport:
    """Write `source` to `output` with matrices in `dtype`; tensors that are not recoded keep their bytes.

    Without `only`: every matrix but embeddings, head, blr tensors, in_proj_a, in_proj_b and those of fewer than 32
    weights. With it: exactly the tensors whose name matches a pattern, whatever they are; those that are no matrices
    only where `dtype` is a float. A matrix that `dtype` cannot hold becomes q8_2f. One matrix in float32 is held at a time.

    Raises:
        InputError: a pattern that matches nothing, an output that is an input, non-finite values, or values beyond the
            range of `dtype`. OutputError: the output cannot be written. No failure leaves a file behind.
    """
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in source.tensors):
            raise InputError(f"--only {pattern!r}: matches no tensor of {source.path}")
    report = RequantReport([output], bytes_before=source.nbytes)
    targets = {name: _target(entry, dtype, only, report) for name, entry in source.tensors.items()}
    directory = [(name, targets[name], entry.shape) for name, entry in source.tensors.items()]
    sizes = [
        entry.nbytes if targets[name] == entry.dtype else codecs.size_bound(targets[name], entry.shape)
        for name, entry in source.tensors.items()
    ]
    sections = {name: source.section(name) for name in _COPIED_SECTIONS}
    header = _header(source, dtype, only)
    writer = model_writer(
        output, header, directory, source.tokenizer_json, sections, shard_bytes=shard_bytes, sizes=sizes
    )
    for path in writer.paths:
        check_target(path, source.paths)
    if progress is not None:
        progress.start("requant", len(directory), "tensors")
    with writer:
        for name, entry in source.tensors.items():
            if targets[name] == entry.dtype:
                writer.write(name, source.raw(name))
            else:
                payload, row = _recoded(source, entry, targets[name])
                writer.write(name, payload)
                report.changed.append(row)
            if progress is not None:
                progress.advance()
    report.outputs = writer.paths
    report.bytes_after = sum(path.stat().st_size for path in writer.paths)
    return report


def _target(entry: TensorEntry, dtype: Dtype, only: Sequence[str], report: RequantReport) -> Dtype:
    """The type that a tensor gets; the report learns of exceptions."""
    named = any(fnmatchcase(entry.name, pattern) for pattern in only)
    if not (named if only else _is_body_matrix(entry)):
        return entry.dtype
    if len(entry.shape) != 2 and dtype in codecs.QUANTISED:
        report.left.append(entry.name)
        return entry.dtype
    target = codecs.fitting(dtype, entry.shape)
    if target != dtype:
        report.fell_back.append(entry.name)
    return target


def _is_body_matrix(entry: TensorEntry) -> bool:
    return (
        len(entry.shape) == 2
        and entry.dtype != Dtype.BLR
        and not entry.name.endswith((*_EMBEDDINGS, *SMALL_LINEARS))
        and math.prod(entry.shape) >= _SMALLEST
    )


def _header(source: CmfFile, dtype: Dtype, only: Sequence[str]) -> dict[str, Any]:
    provenance = dict(source.header.get("provenance") or {})
    earlier = provenance.get("requant")
    record = {"dtype": dtype.label, "only": list(only), "version": __version__}
    provenance["requant"] = [*(earlier if isinstance(earlier, list) else []), record]
    header = {**source.header, "provenance": provenance}
    return header if only else {**header, "quant_type": dtype.name}


def _recoded(source: CmfFile, entry: TensorEntry, target: Dtype) -> tuple[Array, Recoded]:
    where = f"{entry.name} ({source.path})"
    values = source.array(entry.name)
    payload = codecs.encode(values, target, where)
    error = float(np.linalg.norm(codecs.decode(payload, target, entry.shape, where) - values))
    norm = float(np.linalg.norm(values))
    relative = error / norm if norm else 0.0
    return payload, Recoded(entry.name, entry.dtype, target, entry.nbytes, len(payload), relative)
