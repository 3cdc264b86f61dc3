"""A dense model file to a compressed one: every body linear becomes binary low-rank, the rest f16.

The embeddings and the head take `embed_dtype` instead when one is given. Tensors are read, encoded and written one by
one in the order of the teacher's directory, so memory holds one matrix at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu import __version__
from nvgpu.encode.encoders import encode, encoder
from nvgpu.encode.factors import Path as Term
from nvgpu.encode.factors import Problem
from nvgpu.encode.rank import blr_bits, check_shape, choose_rank
from nvgpu.errors import InputError
from nvgpu.formats.blr import BlrPath, BlrTensor
from nvgpu.formats.cmf import CmfFile, CmfWriter, TensorEntry
from nvgpu.formats.codecs import Dtype, encode_array

BODY_LINEARS = tuple(
    f".{name}.weight"
    for name in (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    )
)  # fmt: skip
EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True)
class TensorReport:
    """One body linear [m, n]. Bits per weight count signs and scales; the error is ||W - What|| / ||W||."""

    name: str
    shape: tuple[int, int]
    rank: int
    paths: int
    bpw_target: float
    bpw: float
    relative_error: float
    seconds: float


@dataclass(frozen=True)
class CompressReport:
    """What was written: the body linears one by one, and the totals.

    `body_bpw` is bits over weights of the body linears; `file_bpw` is all bits of the file, tokenizer and header
    included, over all parameters of the model.
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

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)


Progress = Callable[[TensorReport, int, int], None]  # the row just done, how many are done, how many there are


def compress(
    teacher: CmfFile,
    out_path: Path,
    *,
    bpw: float,
    method: str,
    paths: int,
    embed_dtype: Dtype | None = None,
    progress: Progress | None = None,
) -> CompressReport:
    """Writes the student of `teacher` to `out_path` (temporary name, then renamed) and reports what it holds.

    `bpw` is the budget of every body linear, in bits per weight. Equal input gives equal bytes on one machine.
    Raises InputError naming the option or the tensor before anything is written where the budget, the method, the
    shape or a dtype cannot work, and naming the tensor when its values do not fit f16; OutputError from the writer.
    """
    start = time.perf_counter()
    encoder(method)
    ranks = plan_ranks(teacher, bpw, paths)
    entries = list(teacher.tensors.values())
    dtypes = {e.name: _stored_dtype(e, ranks, embed_dtype) for e in entries}
    header = _header(teacher, method=method, bpw=bpw, paths=paths, embed_dtype=embed_dtype)
    rows: list[TensorReport] = []
    directory = [(e.name, dtypes[e.name], e.shape) for e in entries]
    with CmfWriter(out_path, header, directory, teacher.tokenizer_json) as writer:
        for entry in entries:
            if entry.name in ranks:
                payload, row = _encode_linear(teacher, entry, ranks[entry.name], paths, bpw, method)
                rows.append(row)
                if progress is not None:
                    progress(row, len(rows), len(ranks))
            else:
                payload = _encode_dense(teacher, entry, dtypes[entry.name])
            writer.write(entry.name, payload)
    return _report(method, paths, rows, entries, out_path, time.perf_counter() - start)


def is_body_linear(name: str) -> bool:
    """Whether a tensor of this name becomes binary low-rank."""
    return name.startswith("model.layers.") and name.endswith(BODY_LINEARS)


def plan_ranks(teacher: CmfFile, bpw: float, paths: int) -> dict[str, int]:
    """The rank of every body linear; raises InputError naming the first tensor that cannot be had at this budget."""
    ranks = {}
    for entry in teacher.tensors.values():
        if is_body_linear(entry.name):
            if entry.dtype == Dtype.BLR:
                raise InputError(f"{entry.name}: already binary low-rank, the full-precision model is expected")
            ranks[entry.name] = choose_rank(entry.name, *check_shape(entry.name, entry.shape), bpw, paths)
    if not ranks:
        raise InputError("the model holds no body linear (model.layers.*.{self_attn,linear_attn,mlp}.*_proj.weight)")
    return ranks


def _stored_dtype(entry: TensorEntry, ranks: dict[str, int], embed_dtype: Dtype | None) -> Dtype:
    if entry.name in ranks:
        return Dtype.BLR
    return embed_dtype if embed_dtype is not None and entry.name in EMBEDDINGS else Dtype.F16


def _encode_linear(
    teacher: CmfFile, entry: TensorEntry, rank: int, paths: int, bpw: float, method: str
) -> tuple[bytes, TensorReport]:
    start = time.perf_counter()
    problem = Problem(teacher.array(entry.name).astype(np.float64), rank, paths)
    terms = encode(entry.name, problem, method)
    m, n = problem.w.shape
    packed = BlrTensor(m, n, rank, [_pack(t) for t in terms])
    row = TensorReport(
        name=entry.name,
        shape=(m, n),
        rank=rank,
        paths=paths,
        bpw_target=bpw,
        bpw=packed.bpw,
        relative_error=problem.relative_error(terms),
        seconds=time.perf_counter() - start,
    )
    return packed.pack(), row


def _pack(term: Term) -> BlrPath:
    """The stored form: f16 scales, one bit a sign, LSB first, set for +1."""

    def bits(signs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.packbits(signs > 0, axis=1, bitorder="little")

    half = np.float16
    return BlrPath(term.h.astype(half), term.l.astype(half), term.g.astype(half), bits(term.u), bits(term.v))


def _encode_dense(teacher: CmfFile, entry: TensorEntry, dtype: Dtype) -> Any:
    if entry.dtype == dtype:
        return teacher.raw(entry.name)
    values = teacher.array(entry.name)
    if dtype == Dtype.F16 and not np.abs(values).max(initial=0.0) < 65520.0:  # what rounds to at most 65504
        raise InputError(f"{entry.name}: its largest value {np.abs(values).max():.3g} does not fit f16")
    return encode_array(values, dtype, entry.name)


def _header(teacher: CmfFile, **options: Any) -> dict[str, Any]:
    """The teacher's header with `provenance.compress` set."""
    embed_dtype = options.pop("embed_dtype")
    made = {**options, "embed_dtype": "f16" if embed_dtype is None else embed_dtype.name.lower(), "version": __version__}
    provenance = {**(teacher.header.get("provenance") or {}), "compress": made}
    return {**teacher.header, "provenance": provenance}


def _report(
    method: str, paths: int, rows: list[TensorReport], entries: list[TensorEntry], out_path: Path, seconds: float
) -> CompressReport:
    weights = sum(math.prod(row.shape) for row in rows)
    bits = sum(blr_bits(*row.shape, row.rank, row.paths) for row in rows)
    parameters = sum(math.prod(e.shape) for e in entries)
    file_bytes = Path(out_path).stat().st_size
    return CompressReport(
        method=method,
        paths=paths,
        tensors=tuple(rows),
        body_weights=weights,
        body_bpw=bits / weights,
        mean_relative_error=float(np.mean([row.relative_error for row in rows])),
        parameters=parameters,
        file_bytes=file_bytes,
        file_bpw=8 * file_bytes / parameters,
        seconds=seconds,
    )
