"""Calibrated compression: text to windows, windows to Grams, Grams to the encoders; a stopped run can go on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu.encode.compress import CompressOptions, CompressReport, compress, plan_ranks
from nvgpu.encode.grams import SETS, capture
from nvgpu.encode.partial import Partial
from nvgpu.errors import InputError, NvgpuError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.files import check_target
from nvgpu.formats.text import TextSource, split_budget
from nvgpu.formats.tokenizer import Tokenizer
from nvgpu.gpu import Device
from nvgpu.progress import Progress

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Calibration:
    """Text for the Grams: `fit_tokens` weigh the encoders' errors, `sel_tokens` judge; both in windows of `window` tokens."""

    sources: tuple[TextSource, ...]
    fit_tokens: int = 16384
    sel_tokens: int = 4096
    window: int = 256

    def windows(self, model: CmfFile, seed: int) -> dict[str, Array]:
        """u32 `[windows, T]` by set, drawn without overlap; at least one window each.

        Raises:
            InputError: the sources hold less than two windows.
        """
        wanted = [max(1, tokens // self.window) for tokens in (self.fit_tokens, self.sel_tokens)]
        found = split_budget(self.sources, Tokenizer.of(model), sum(wanted) * self.window)
        texts = [text.ids for text in found]
        cut = [ids[: len(ids) // self.window * self.window].reshape(-1, self.window) for ids in texts]
        every = np.concatenate(cut)
        if len(every) < 2:
            raise InputError(
                f"--calib: found {len(every)} whole windows of {self.window} tokens, expected at least 2, in "
                + ", ".join(str(source.path) for source in self.sources)
            )
        order = np.random.default_rng(seed).permutation(len(every))
        sel = max(1, min(wanted[1], len(every) * wanted[1] // sum(wanted)))
        chosen = {"fit": every[order[: len(every) - sel]], "sel": every[order[len(every) - sel :]]}
        return {kind: np.ascontiguousarray(chosen[kind], np.uint32) for kind in SETS}


def compress_calibrated(
    teacher: CmfFile,
    output: Path,
    options: CompressOptions,
    calibration: Calibration | None,
    progress: Progress,
    *,
    device: Callable[[], Device],
) -> CompressReport:
    """`compress` with Grams of the calibration text (none: the identity), resumable from `OUTPUT.partial/`.

    `device` is opened only where Grams are missing.
    """
    plan_ranks(teacher, options)
    check_target(output, teacher.paths)
    windows = calibration.windows(teacher, options.seed) if calibration is not None else {}
    partial = Partial(output, _key(teacher, options, windows))
    finished = partial.open()
    if finished:
        progress.say(f"{partial.path} holds {finished} finished tensors of a run that was stopped")
    if calibration is None and options.method != "svid":
        progress.say(
            "no --calib: all inputs count alike; on the bundled model the student then starts at 1.6 times the KL"
        )
    try:
        missing = [
            n for n in plan_ranks(teacher, options) for k in windows if not partial.grams.file(n, k).is_file()
        ]
        if missing:
            opened = device()
            capture(opened, teacher, windows, partial.grams, progress)
            opened.close()
        grams = partial.grams if windows else None
        report = compress(teacher, output, options, grams=grams, partial=partial, progress=progress)
    except NvgpuError:
        partial.remove()  # what failed fails again
        raise
    partial.remove()
    return report


def _key(teacher: CmfFile, options: CompressOptions, windows: dict[str, Array]) -> dict[str, Any]:
    """What the bytes of a student depend on."""
    data = {kind: hashlib.sha256(ids.tobytes()).hexdigest() for kind, ids in windows.items()}
    return {"teacher": teacher.content_key(), **options.record(), "windows": data}
