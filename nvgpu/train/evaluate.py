"""Evaluation on text: negative log-likelihood, perplexity, and KL to a teacher over the full vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvgpu.errors import InputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.tokenizer import Tokenizer, same_tokenizer
from nvgpu.gpu import Device, Profiler
from nvgpu.model.executor import Executor
from nvgpu.model.geometry import Geometry
from nvgpu.model.headers import Headers
from nvgpu.model.net import Net, NetOptions
from nvgpu.progress import Progress
from nvgpu.train.targets import renormalised
from nvgpu.train.windows import cut

Array = np.ndarray[Any, Any]
_ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class Evaluation:
    """`nll` in nats over `tokens` scored tokens, windows·(T-1) of plain text; `kl` (and `kl_topk`) over the rows that count,
    windows·T of plain text."""

    nll: float
    ppl: float
    tokens: int
    windows: int
    window: int
    kl: float | None = None
    kl_topk: float | None = None
    topk: int | None = None


def evaluate(
    device: Device,
    model: CmfFile | Headers,
    tokens: Array,
    *,
    window: int,
    max_windows: int | None = None,
    teacher: CmfFile | None = None,
    topk: int | None = None,
    mixed: bool = False,
    progress: Progress,
    weights: Array | None = None,
    profiler: Profiler | None = None,
) -> Evaluation:
    """Score `tokens` (u32), cut into whole windows from its start; each window is its own context.

    `weights` (f32 `[tokens]`, 0 or 1) say which rows count; windows without one are left out. Without it all do.

    Raises:
        InputError: less text than one window, no row that counts, a teacher with other tokens, or logits that are not finite.
    """
    if topk is not None and teacher is None:
        raise InputError("--topk: needs --teacher, whose top-k distribution it compares with")
    if teacher is not None and isinstance(model, CmfFile):
        require_same_tokens(model, teacher)
    windows = cut(tokens, window)[:max_windows]
    if not len(windows):
        raise InputError(f"--text: found {len(tokens)} tokens, expected at least one window of {window}")
    rows = np.ones(windows.shape, np.float32) if weights is None else cut(weights, window)[:max_windows]
    scored = rows[:, :-1].any(axis=1)
    if not scored.any():
        raise InputError(
            f"--loss-on answer: none of the {rows.size} rows predicts a token of an assistant's turn; expected conversations"
        )
    windows, rows = windows[scored], rows[scored]
    vocab, largest = Geometry.of(model).vocab_size, int(windows.max())
    if largest >= vocab:
        raise InputError(f"{model.path}: its tokenizer gives id {largest}, the vocabulary has {vocab}")
    student = Executor(Net(device, model, NetOptions(window, mixed=mixed)), profiler=profiler)
    reference = (
        Executor(Net(device, teacher, NetOptions(window, mixed=mixed))) if teacher is not None else None
    )
    sums = _Sums(str(model.path), str(teacher.path) if teacher is not None else "")
    at_once = max(1, _ROWS_AT_ONCE // window)
    progress.start("eval", windows.size, "tokens")
    for first in range(0, len(windows), at_once):
        part = windows[first : first + at_once]
        with student.rec.phase("evaluation", whole=True):
            sums.add(student, reference, part, rows[first : first + at_once], topk)
        progress.advance(part.size)
    progress.stop()
    for executor in filter(None, (student, reference)):
        executor.free()
        executor.net.free()
    count, all_rows = int(rows[:, :-1].sum(dtype=np.float64)), float(rows.sum(dtype=np.float64))
    nll = sums.nll / count
    return Evaluation(
        nll=nll,
        ppl=math.exp(min(nll, 700.0)),
        tokens=count,
        windows=len(windows),
        window=window,
        kl=sums.kl / all_rows if reference else None,
        kl_topk=sums.kl_topk / all_rows if topk else None,
        topk=topk,
    )


def require_same_tokens(student: CmfFile, teacher: CmfFile) -> None:
    """Raise InputError unless both files map the same tokens to the same ids."""
    pair = [Tokenizer.of(model) for model in (student, teacher)]
    difference = same_tokenizer(*pair)
    if difference is not None:
        raise InputError(f"tokenizers of {student.path} and {teacher.path} differ: {difference}")


class _Sums:
    def __init__(self, model: str, teacher: str) -> None:
        self.model, self.teacher = model, teacher
        self.nll = self.kl = self.kl_topk = 0.0

    def add(
        self, student: Executor, reference: Executor | None, windows: Array, weights: Array, topk: int | None
    ) -> None:
        ids, rows = np.ascontiguousarray(windows).reshape(-1), weights.astype(np.float64)
        scored = np.concatenate([rows[:, :-1], np.zeros((len(rows), 1))], axis=1)
        rows = rows.reshape(-1)
        targets = np.roll(windows, -1, axis=1).reshape(-1)
        nll, kl = student.evaluate(ids, targets, reference)
        self.nll += float(nll @ scored.reshape(-1))
        if not math.isfinite(self.nll):
            raise InputError(f"{self.model}: its logits are not finite on this text, so it has no perplexity")
        if kl is not None:
            self.kl += float(kl @ rows)
            if not math.isfinite(self.kl):
                raise InputError(
                    f"{self.teacher}: its logits are not finite on this text, so there is no KL to it"
                )
        if reference is not None and topk is not None:
            top_ids, top_p = reference.topk(ids, topk)
            self.kl_topk += float(student.loss(ids, top_ids, renormalised(top_p)) @ rows)
