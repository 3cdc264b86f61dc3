"""A dense model file to a compressed one: every body linear becomes binary low-rank, the rest f16.

The embeddings and the head take `embed_dtype` instead when one is given. Tensors are read, encoded and
written one by one in the order of the teacher's directory, so memory holds one matrix at a time.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu import __version__
from nvgpu.encode.encoders import AUTO, QUICK_METHOD, encode, most_ranks, resolved
from nvgpu.encode.factors import F64, Problem
from nvgpu.encode.factors import Path as Term
from nvgpu.encode.grams import SETS, GramFolder, damped
from nvgpu.encode.partial import Partial
from nvgpu.encode.rank import check_shape, choose_rank, is_capped, max_rank
from nvgpu.errors import InputError
from nvgpu.formats import codecs
from nvgpu.formats.blr import BlrPath, BlrTensor, pack_signs
from nvgpu.formats.cmf import CmfFile, CmfWriter, TensorEntry
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.files import check_target
from nvgpu.model import names
from nvgpu.progress import Progress, Silent

_BODY_LINEAR = re.compile(r"model\.layers\.(\d+)\.(" + "|".join(map(re.escape, names.BODY)) + ")")
_EMBEDDINGS = (names.EMBED, names.LM_HEAD)


@dataclass(frozen=True)
class TensorReport:
    """One body linear [m, n]: `bits` are those of signs and scales, `bpw` is bits per weight.

    `relative_error` is ||W - What|| / ||W||, What as stored; `fit_error` and `sel_error` are the same in the metric of the
    FIT and the SEL Gram, None without calibration.
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
    fit_error: float | None = None
    sel_error: float | None = None

    @property
    def error(self) -> float:
        """The error that says most about the model: of SEL where there is one."""
        return self.relative_error if self.sel_error is None else self.sel_error


@dataclass(frozen=True)
class CompressReport:
    """What was written: the body linears one by one, and the totals.

    `body_bpw` is bits over weights of the body linears; `file_bpw` is all bits of the file, tokenizer and
    header included, over all parameters of the model. `paths` is what was asked for, None for the better one each.
    """

    method: str
    paths: int | None
    tensors: tuple[TensorReport, ...]
    body_weights: int
    body_bpw: float
    mean_relative_error: float
    mean_sel_error: float | None
    parameters: int
    file_bytes: int
    file_bpw: float
    seconds: float

    def asdict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class CompressOptions:
    """How to compress: `bpw` is the budget of every body linear in bits per weight, scales included; `paths` None takes the
    better of 1 and 2 for each; `embed_dtype` stores embeddings and head (None: f16); `refine_signs` descends on signs; `seed` of
    what the encoders draw.

    Raises:
        InputError: an unknown method or dtype.
    """

    bpw: float
    method: str = AUTO
    paths: int | None = None
    embed_dtype: str | None = None
    refine_signs: bool = True
    seed: int = 42

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", resolved(self.method))
        _ = self.embed

    @property
    def embed(self) -> Dtype:
        """Storage of embeddings and head."""
        return Dtype.F16 if self.embed_dtype is None else codecs.dtype_by_name(self.embed_dtype)

    def record(self) -> dict[str, Any]:
        """The options as provenance keeps them."""
        return {**asdict(self), "embed_dtype": self.embed.label, "version": __version__}


def compress(
    teacher: CmfFile,
    out_path: Path,
    options: CompressOptions,
    *,
    grams: GramFolder | None = None,
    partial: Partial | None = None,
    progress: Progress | None = None,
) -> CompressReport:
    """Writes the student of `teacher` to `out_path` (temporary name, then renamed) and reports what it holds.

    `grams` weigh the errors. Tensors that an open `partial` holds are taken from it, and finished ones are put there. Equal input
    and seed give equal bytes on one machine.

    Raises:
        InputError: names the option or the tensor; before anything is written where the budget, the method, a
            dtype or a shape cannot work, later where values do not fit the stored type.
        OutputError: the file cannot be written. No failure leaves one behind.
    """
    began = time.perf_counter()
    progress = progress or Silent()
    ranks = plan_ranks(teacher, options)
    check_target(Path(out_path), teacher.paths)
    for name in teacher.tensors:
        teacher.check_finite(name)
    dtypes = {name: _stored_dtype(name, ranks, options.embed) for name in teacher.tensors}
    calibrated = {"calibrated": grams is not None}
    provenance = {
        **(teacher.header.get("provenance") or {}),
        "compress": {**options.record(), **calibrated},
    }
    header = {**teacher.header, "provenance": provenance}
    directory = [(name, dtypes[name], entry.shape) for name, entry in teacher.tensors.items()]
    rows: list[TensorReport] = []
    progress.start("compress", len(ranks), "tensors")
    _say_capped(teacher, ranks, options, progress)
    with CmfWriter(out_path, header, directory, teacher.tokenizer_json) as writer:
        for name, entry in teacher.tensors.items():
            if name not in ranks:
                writer.write(name, _dense_payload(teacher, entry, dtypes[name]))
                continue
            payload, row = _finished(partial, name) or _encode_linear(
                teacher, name, ranks[name], options, grams
            )
            if partial is not None:
                partial.save(name, payload, asdict(row))
            writer.write(name, payload)
            rows.append(row)
            progress.advance(1, error=row.error, bpw=row.bpw)
    parameters = sum(math.prod(entry.shape) for entry in teacher.tensors.values())
    size = Path(out_path).stat().st_size
    return _report(options, rows, parameters, size, time.perf_counter() - began)


def is_body_linear(name: str) -> bool:
    """Whether a tensor of this name becomes binary low-rank."""
    return _BODY_LINEAR.fullmatch(name) is not None


def plan_ranks(teacher: CmfFile, options: CompressOptions) -> dict[str, dict[int, int]]:
    """The rank of every body linear by number of paths to try; raises InputError naming the first that the budget cannot hold."""
    ranks = {}
    for name, entry in teacher.tensors.items():
        if not is_body_linear(name):
            continue
        where = f"{teacher.path}: {name}"
        if entry.dtype == Dtype.BLR:
            raise InputError(f"{where} is binary low-rank already, expected a dense model")
        ranks[name] = _path_ranks(where, check_shape(where, entry.shape), options)
    if not ranks:
        raise InputError(
            f"{teacher.path}: no linear to compress, expected {names.layer(0, names.BODY[-1])} and others"
        )
    return ranks


def _path_ranks(where: str, shape: tuple[int, int], options: CompressOptions) -> dict[int, int]:
    def rank(paths: int) -> int:
        return choose_rank(where, *shape, options.bpw, paths, times=most_ranks(options.method))

    if options.paths is not None:
        return {options.paths: rank(options.paths)}
    ranks = {1: rank(1)}
    with suppress(InputError):  # a budget for one path only
        ranks[2] = rank(2)
    return ranks


def _say_capped(
    teacher: CmfFile, ranks: Mapping[str, Mapping[int, int]], options: CompressOptions, progress: Progress
) -> None:
    capped = [
        name
        for name, choice in ranks.items()
        if all(is_capped(teacher.tensors[name].shape, r, options.bpw, paths) for paths, r in choice.items())
    ]
    if capped:
        progress.say(
            f"--bpw {options.bpw:g} is more than {len(capped)} of {len(ranks)} matrices can use, such as {capped[0]}: "
            f"their ranks are capped at {most_ranks(options.method)} x min(out, in)"
        )


def _stored_dtype(name: str, ranks: Mapping[str, Any], embed: Dtype) -> Dtype:
    if name in ranks:
        return Dtype.BLR
    return embed if name in _EMBEDDINGS else Dtype.F16


def _dense_payload(teacher: CmfFile, entry: TensorEntry, dtype: Dtype) -> Any:
    if entry.dtype == dtype:
        return teacher.raw(entry.name)
    return codecs.encode(teacher.array(entry.name), dtype, f"{entry.name} ({teacher.path})")


def _finished(partial: Partial | None, name: str) -> tuple[bytes, TensorReport] | None:
    found = partial.load(name) if partial is not None else None
    if found is None:
        return None
    payload, row = found
    return payload, TensorReport(**{**row, "shape": tuple(row["shape"])})


def _encode_linear(
    teacher: CmfFile,
    name: str,
    ranks: Mapping[int, int],
    options: CompressOptions,
    grams: GramFolder | None,
) -> tuple[bytes, TensorReport]:
    began = time.perf_counter()
    w = teacher.array(name).astype(np.float64)
    fit, sel = (grams.read(name, kind) for kind in SETS) if grams is not None else (None, None)
    metric = damped(fit) if fit is not None else None
    trials = [Problem(w, rank, paths, metric, options.seed) for paths, rank in ranks.items()]
    where = f"{teacher.path}: {name}"
    problem = trials[0] if len(trials) == 1 else _better(trials, sel, where, options)
    terms = encode(where, problem, options.method, options.refine_signs)
    m, n = w.shape
    packed = BlrTensor(m, n, problem.rank, tuple(_pack(term) for term in terms))
    errors = [_relative_error(w, gram, terms) for gram in (None, fit, sel)]
    row = TensorReport(
        name,
        (m, n),
        problem.rank,
        problem.paths,
        options.bpw,
        packed.bpw,
        packed.bits,
        relative_error=errors[0],
        seconds=time.perf_counter() - began,
        fit_error=errors[1] if fit is not None else None,
        sel_error=errors[2] if sel is not None else None,
    )
    return packed.pack(), row


def _better(trials: list[Problem], sel: F64 | None, where: str, options: CompressOptions) -> Problem:
    """The number of paths whose quick encoding has the lower error on tokens that it was not fitted to."""
    method = options.method if options.method in ("svid", "svid-refit") else QUICK_METHOD

    def error(problem: Problem) -> float:
        capped = replace(problem, rank=min(problem.rank, max_rank(*problem.w.shape)))
        return _relative_error(problem.w, sel, encode(where, capped, method, options.refine_signs))

    return min(trials, key=error)


def _relative_error(w: F64, gram: F64 | None, terms: list[Term]) -> float:
    return Problem(w, terms[0].l.size, len(terms), gram).relative_error(terms)


def _pack(term: Term) -> BlrPath:
    h, l, g = (scale.astype(np.float16) for scale in (term.h, term.l, term.g))
    return BlrPath(h=h, l=l, g=g, u=pack_signs(term.u), v=pack_signs(term.v))


def _report(
    options: CompressOptions, rows: list[TensorReport], parameters: int, file_bytes: int, seconds: float
) -> CompressReport:
    weights = sum(math.prod(row.shape) for row in rows)
    sel = [row.sel_error for row in rows if row.sel_error is not None]
    return CompressReport(
        method=options.method,
        paths=options.paths,
        tensors=tuple(rows),
        body_weights=weights,
        body_bpw=sum(row.bits for row in rows) / weights,
        mean_relative_error=sum(row.relative_error for row in rows) / len(rows),
        mean_sel_error=sum(sel) / len(sel) if sel else None,
        parameters=parameters,
        file_bytes=file_bytes,
        file_bpw=8 * file_bytes / parameters,
        seconds=seconds,
    )
