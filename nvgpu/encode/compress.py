"""A dense model file to a compressed one: every body linear becomes binary low-rank, the rest f16.

The embeddings and the head take `embed_dtype` instead when one is given. Tensors are read, encoded and
written one by one in the order of the teacher's directory, so memory holds one matrix at a time.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu import __version__
from nvgpu.encode.encoders import encode, encoder
from nvgpu.encode.factors import Path as Term
from nvgpu.encode.factors import Problem
from nvgpu.encode.rank import check_shape, choose_rank, is_capped
from nvgpu.errors import InputError
from nvgpu.formats import codecs
from nvgpu.formats.blr import BlrPath, BlrTensor, pack_signs
from nvgpu.formats.cmf import CmfFile, CmfWriter, TensorEntry
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.files import check_target
from nvgpu.model import names
from nvgpu.progress import Progress

_TAILS = (*names.ATTENTION.values(), *(names.GDN[k] for k in ("in_qkv", "in_z", "out")), *names.MLP.values())
_BODY_LINEAR = re.compile(r"model\.layers\.\d+\.(?:" + "|".join(map(re.escape, _TAILS)) + ")")
_EMBEDDINGS = (names.EMBED, names.LM_HEAD)


@dataclass(frozen=True)
class TensorReport:
    """One body linear [m, n]: `bits` are those of signs and scales, `bpw` is bits per weight.

    `relative_error` is ||W - What|| / ||W||, What as stored.
    """

    name: str
    shape: tuple[int, int]
    rank: int
    paths: int
    bpw_target: float
    bpw: float
    bits: int
    relative_error: float
    seconds: float


@dataclass(frozen=True)
class CompressReport:
    """What was written: the body linears one by one, and the totals.

    `body_bpw` is bits over weights of the body linears; `file_bpw` is all bits of the file, tokenizer and
    header included, over all parameters of the model.
    """

    method: str
    paths: int
    tensors: tuple[TensorReport, ...]
    body_weights: int
    body_bpw: float
    mean_relative_error: float
    parameters: int
    file_bytes: int
    file_bpw: float
    seconds: float

    def asdict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)


def compress(
    teacher: CmfFile,
    out_path: Path,
    *,
    bpw: float,
    method: str,
    paths: int,
    embed_dtype: str | None = None,
    progress: Progress | None = None,
) -> CompressReport:
    """Writes the student of `teacher` to `out_path` (temporary name, then renamed) and reports what it holds.

    `bpw` is the budget of every body linear, in bits per weight; `embed_dtype` a name that
    `codecs.dtype_by_name` knows. Equal input gives equal bytes on one machine.

    Raises:
        InputError: names the option or the tensor; before anything is written where the budget, the method, a
            dtype or a shape cannot work, later where values do not fit the stored type.
        OutputError: the file cannot be written. No failure leaves one behind.
    """
    began = time.perf_counter()
    encoder(method)
    ranks = plan_ranks(teacher, bpw, paths)
    check_target(Path(out_path), [teacher.path])
    for name in teacher.tensors:
        teacher.check_finite(name)
    embed = Dtype.F16 if embed_dtype is None else codecs.dtype_by_name(embed_dtype)
    dtypes = {name: _stored_dtype(name, ranks, embed) for name in teacher.tensors}
    record = {
        "method": method,
        "bpw": bpw,
        "paths": paths,
        "embed_dtype": embed.label,
        "version": __version__,
    }
    provenance = {**(teacher.header.get("provenance") or {}), "compress": record}
    header = {**teacher.header, "provenance": provenance}
    directory = [(name, dtypes[name], entry.shape) for name, entry in teacher.tensors.items()]
    rows: list[TensorReport] = []
    if progress is not None:
        progress.start("compress", len(ranks), "tensors")
        capped = [
            name for name, rank in ranks.items() if is_capped(teacher.tensors[name].shape, rank, bpw, paths)
        ]
        if capped:
            progress.say(
                f"--bpw {bpw:g} is more than {len(capped)} of {len(ranks)} matrices can use, such as {capped[0]}: "
                "they are capped at their full rank"
            )
    with CmfWriter(out_path, header, directory, teacher.tokenizer_json) as writer:
        for name, entry in teacher.tensors.items():
            if name not in ranks:
                writer.write(name, _dense_payload(teacher, entry, dtypes[name]))
                continue
            payload, row = _encode_linear(teacher, name, ranks[name], paths, bpw, method)
            writer.write(name, payload)
            rows.append(row)
            if progress is not None:
                progress.advance(1, error=row.relative_error, bpw=row.bpw)
    parameters = sum(math.prod(entry.shape) for entry in teacher.tensors.values())
    size = Path(out_path).stat().st_size
    return _report(method, paths, rows, parameters, size, time.perf_counter() - began)


def is_body_linear(name: str) -> bool:
    """Whether a tensor of this name becomes binary low-rank."""
    return _BODY_LINEAR.fullmatch(name) is not None


def plan_ranks(teacher: CmfFile, bpw: float, paths: int) -> dict[str, int]:
    """The rank of every body linear; raises InputError naming the first tensor the budget cannot hold."""
    ranks = {}
    for name, entry in teacher.tensors.items():
        if not is_body_linear(name):
            continue
        where = f"{teacher.path}: {name}"
        if entry.dtype == Dtype.BLR:
            raise InputError(f"{where} is binary low-rank already, expected a dense model")
        ranks[name] = choose_rank(where, *check_shape(where, entry.shape), bpw, paths)
    if not ranks:
        raise InputError(
            f"{teacher.path}: no linear to compress, expected {names.layer(0, _TAILS[-1])} and others"
        )
    return ranks


def _stored_dtype(name: str, ranks: Mapping[str, int], embed: Dtype) -> Dtype:
    if name in ranks:
        return Dtype.BLR
    return embed if name in _EMBEDDINGS else Dtype.F16


def _dense_payload(teacher: CmfFile, entry: TensorEntry, dtype: Dtype) -> Any:
    if entry.dtype == dtype:
        return teacher.raw(entry.name)
    return codecs.encode(teacher.array(entry.name), dtype, f"{entry.name} ({teacher.path})")


def _encode_linear(
    teacher: CmfFile, name: str, rank: int, paths: int, bpw: float, method: str
) -> tuple[bytes, TensorReport]:
    began = time.perf_counter()
    problem = Problem(teacher.array(name).astype(np.float64), rank, paths)
    terms = encode(f"{teacher.path}: {name}", problem, method)
    m, n = problem.w.shape
    packed = BlrTensor(m, n, rank, tuple(_pack(term) for term in terms))
    error = problem.relative_error(terms)
    seconds = time.perf_counter() - began
    row = TensorReport(name, (m, n), rank, paths, bpw, packed.bpw, packed.bits, error, seconds)
    return packed.pack(), row


def _pack(term: Term) -> BlrPath:
    h, l, g = (scale.astype(np.float16) for scale in (term.h, term.l, term.g))
    return BlrPath(h=h, l=l, g=g, u=pack_signs(term.u), v=pack_signs(term.v))


def _report(
    method: str, paths: int, rows: list[TensorReport], parameters: int, file_bytes: int, seconds: float
) -> CompressReport:
    weights = sum(math.prod(row.shape) for row in rows)
    return CompressReport(
        method=method,
        paths=paths,
        tensors=tuple(rows),
        body_weights=weights,
        body_bpw=sum(row.bits for row in rows) / weights,
        mean_relative_error=sum(row.relative_error for row in rows) / len(rows),
        parameters=parameters,
        file_bytes=file_bytes,
        file_bpw=8 * file_bytes / parameters,
        seconds=seconds,
    )
