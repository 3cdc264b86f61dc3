"""What Python users and the command line call: train, evaluate, load."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from nvgpu.errors import InputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.text import LOSS_ON, TextSource, read_all
from nvgpu.formats.tokenizer import Tokenizer
from nvgpu.gpu import Device, open_device
from nvgpu.model.executor import Executor
from nvgpu.model.net import Net, NetOptions
from nvgpu.progress import Progress, Silent
from nvgpu.train.evaluate import Evaluation
from nvgpu.train.evaluate import evaluate as run_evaluation
from nvgpu.train.options import PRECISIONS, TrainOptions
from nvgpu.train.run import StateOptions, TrainReport
from nvgpu.train.run import train as run_training
from nvgpu.train.watch import WatchOptions

Array = np.ndarray[Any, Any]
PathLike = str | os.PathLike[str]
Source = PathLike | TextSource


@contextmanager
def device_for(adapter: str | None, vram: float | None) -> Iterator[Device]:
    """An adapter opened with a budget of `vram` GiB, and closed at the end."""
    if vram is not None and not vram > 0:
        raise InputError(f"--vram: found {vram}, expected more than 0")
    device = open_device(adapter, budget=int((vram or 0) * (1 << 30)))
    try:
        yield device
    finally:
        device.close()


def train(
    student: PathLike,
    teacher: PathLike,
    calib: Source | Sequence[Source],
    output: PathLike,
    options: TrainOptions | None = None,
    *,
    adapter: str | None = None,
    vram: float | None = None,
    state: StateOptions | None = None,
    topk_cache: PathLike | None = None,
    watching: WatchOptions | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> TrainReport:
    """Distil a compressed student against its teacher; the best checkpoint becomes `output`.

    calib: text or .jsonl files; a TextSource has a weight. `settings` are fields of TrainOptions, in the place of `options`.
    adapter: as `--adapter`. vram: GiB of device memory to keep to. state: where its state goes. watching: report, trace,
    profile. progress: what it tells, nothing by default.

    Raises:
        TypeError: a setting that TrainOptions does not have, or options and settings both.
        NvgpuError: as the command line would say it.
    """
    if options is not None and settings:
        raise TypeError(f"options and settings ({', '.join(settings)}) were given, expected one of them")
    wanted = options or TrainOptions(**settings)
    sources = [calib] if isinstance(calib, str | os.PathLike | TextSource) else calib
    with device_for(adapter, vram) as device:
        return run_training(
            device,
            Path(student),
            Path(teacher),
            [s if isinstance(s, TextSource) else TextSource(Path(s)) for s in sources],
            Path(output),
            wanted,
            progress or Silent(),
            state,
            Path(topk_cache) if topk_cache is not None else None,
            watching,
        )


def evaluate(
    model: PathLike,
    text: PathLike,
    *,
    teacher: PathLike | None = None,
    window: int = 512,
    max_windows: int | None = None,
    topk: int | None = None,
    precision: str = "f32",
    loss_on: str = "all",
    adapter: str | None = None,
    vram: float | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Perplexity of a model on a text and, with a teacher, its KL divergence; options as those of `nvgpu eval`.

    Raises:
        NvgpuError: as the command line would say it.
    """
    _require("precision", precision, PRECISIONS[1:])
    _require("loss-on", loss_on, LOSS_ON)
    if window < 2 or (max_windows is not None and max_windows < 1):
        raise InputError(f"--window {window}, --max-windows {max_windows}: expected at least 2 and 1")
    told = progress or Silent()
    with ExitStack() as files:
        opened = files.enter_context(CmfFile.open(model))
        reference = files.enter_context(CmfFile.open(teacher)) if teacher is not None else None
        tokenizer = Tokenizer.of(opened)
        tokens = read_all(Path(text), tokenizer, loss_on)
        if tokenizer.chat_fallback_used:
            told.say(f"{model} has no chat template: conversations are written as ChatML")
        device = files.enter_context(device_for(adapter, vram))
        return run_evaluation(
            device,
            opened,
            tokens.ids,
            window=window,
            max_windows=max_windows,
            teacher=reference,
            topk=topk,
            mixed=precision == "mixed",
            progress=told,
            weights=None if loss_on == "all" else tokens.weights,
        )


def load(
    path: PathLike,
    *,
    window: int = 512,
    precision: str = "f32",
    adapter: str | None = None,
    vram: float | None = None,
) -> Model:
    """A model on the device, for up to `window` tokens at a time.

    Raises:
        NvgpuError: no model, no adapter, or too little memory.
    """
    return Model(path, window=window, precision=precision, adapter=adapter, vram=vram)


class Model:
    """A loaded model; a context manager that gives its memory back at the end. `tokenizer` is that of its file."""

    def __init__(
        self, path: PathLike, *, window: int, precision: str, adapter: str | None, vram: float | None
    ) -> None:
        _require("precision", precision, PRECISIONS[1:])
        if window < 1:
            raise InputError(f"window: found {window}, expected at least 1")
        self.path = Path(path)
        self.window = window
        with ExitStack() as held:
            file = held.enter_context(CmfFile.open(path))
            self.tokenizer = Tokenizer.of(file) if file.tokenizer_json is not None else None
            device = held.enter_context(device_for(adapter, vram))
            net = Net(device, file, NetOptions(self.window, mixed=precision == "mixed"))
            self._executor = Executor(net)
            self._held = held.pop_all()

    @property
    def vocab_size(self) -> int:
        return self._executor.net.geometry.vocab_size

    def logits(self, ids: Any) -> Array:
        """Next-token logits f32 `[T, V]` of ids `[T]`, or `[B, T, V]` of `[B, T]`; every row of ids is its own context.

        Raises:
            InputError: other shapes, more than `window` ids in a row, or ids outside the vocabulary.
        """
        given = np.asarray(ids)
        if given.ndim not in (1, 2) or not given.size or given.dtype.kind not in "iu":
            raise InputError(
                f"ids: found {given.dtype} {list(given.shape)}, expected whole numbers [T] or [B, T]"
            )
        rows = np.atleast_2d(given)
        count = rows.shape[1]
        if count > self.window:
            raise InputError(
                f"ids: found {count} in a row, expected at most {self.window} (window of nvgpu.load)"
            )
        if rows.min() < 0 or rows.max() >= self.vocab_size:
            raise InputError(f"ids: found {rows.min()} to {rows.max()}, expected 0 to {self.vocab_size - 1}")
        # what stands behind a token does not change its logits
        padded = np.zeros((1, self.window), np.uint32)
        found = np.empty((len(rows), count, self.vocab_size), np.float32)
        executor = self._executor
        for row, out in zip(rows, found, strict=True):
            padded[0, :count] = row
            hidden = executor.forward(padded.reshape(-1))
            part = hidden.view((count, hidden.shape[1]))
            out[:] = executor.net.head.logits(executor.rec, executor.ws, part)
        return found if given.ndim == 2 else found[0]

    def close(self) -> None:
        """Give the memory back; the model is of no use afterwards."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _require(name: str, found: str, expected: Sequence[str]) -> None:
    if found not in expected:
        raise InputError(f"--{name}: found {found!r}, expected one of {', '.join(expected)}")
