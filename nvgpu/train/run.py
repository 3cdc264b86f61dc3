"""A whole training run: preflight, windows, teacher pass, distillation, the written file and its measured quality."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu import __version__
from nvgpu.errors import InputError, NvgpuError, TrainingError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.files import check_target
from nvgpu.formats.text import TextSource, split_budget
from nvgpu.formats.tokenizer import Tokenizer
from nvgpu.gpu import Device, Profiler
from nvgpu.model.executor import Executor
from nvgpu.model.geometry import Geometry
from nvgpu.model.net import Net, NetOptions
from nvgpu.progress import Progress
from nvgpu.train.evaluate import evaluate, require_same_tokens
from nvgpu.train.export import export, unstorable
from nvgpu.train.facts import facts_of, sizes
from nvgpu.train.loop import Best, Distillation
from nvgpu.train.options import TrainOptions
from nvgpu.train.preflight import check_host_memory, check_output, check_state
from nvgpu.train.sign_options import run_key
from nvgpu.train.state import Keeper, StateFolder
from nvgpu.train.targets import Targets, teacher_targets
from nvgpu.train.topk_cache import TopkCache
from nvgpu.train.watch import Watch, WatchOptions
from nvgpu.train.windows import Windows, split

_HEADER_ROOM = 1 << 20


@dataclass(frozen=True)
class StateOptions:
    """Where a run saves its state, after every so many steps, and the folder it goes on from (None: none).

    `replace`: as in `StateFolder`.
    """

    folder: Path
    every: int = 50
    resume: Path | None = None
    replace: bool = False


@dataclass(frozen=True)
class TrainReport:
    """Outcome of a run. skipped: steps that were not finite. unscored: batches without a row that counts. KL values are top-k;
    `kl_written` and `ppl_written` are measured on the written file, `ppl_start` on the student as given."""

    output: str
    steps: int
    skipped: int
    unscored: int
    diverged: bool
    best_step: int
    kl_start: float
    kl_best: float
    kl_written: float
    ppl_start: float
    ppl_written: float
    losses: list[float]
    evals: list[dict[str, float]]
    options: dict[str, Any]
    adapter: str
    signs: dict[str, Any] | None = None  # as in provenance; None where they did not train
    profile: dict[str, Any] | None = None  # as Profiler.report gives it

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


def train(
    device: Device,
    student_path: Path,
    teacher_path: Path,
    sources: Sequence[TextSource],
    output: Path,
    options: TrainOptions,
    progress: Progress,
    saving: StateOptions | None = None,
    topk_cache: Path | None = None,
    watching: WatchOptions | None = None,
) -> TrainReport:
    """Distil the student against the teacher's top-k distribution and write the best checkpoint to `output`.

    `watching`: what to log, measure and report on the way; it changes nothing about the output.

    Raises:
        InputError, FormatError: something about the inputs, before any device work.
        OutputError: `output` cannot be written.
        Interrupted: a signal came, and the state was saved.
        TrainingError: the run diverged before any checkpoint beat the start, or the written file could not be measured.
    """
    watch = Watch(watching or WatchOptions(), device, progress)
    with watch:
        found = _train(
            device,
            student_path,
            teacher_path,
            sources,
            output,
            options,
            watch.progress,
            saving,
            topk_cache,
            watch,
        )
    return replace(found, profile=watch.profile)


def _train(
    device: Device,
    student_path: Path,
    teacher_path: Path,
    sources: Sequence[TextSource],
    output: Path,
    options: TrainOptions,
    progress: Progress,
    saving: StateOptions | None,
    topk_cache: Path | None,
    watch: Watch,
) -> TrainReport:
    """`train`, watched."""
    options = options.resolved(device.matrix_units)
    with CmfFile.open(student_path) as student, CmfFile.open(teacher_path) as teacher:
        inputs = [student_path, teacher_path, *(source.path for source in sources)]
        check_output(output, inputs, student_path.stat().st_size + _HEADER_ROOM)
        if saving is not None:
            check_state(saving.folder, saving.resume)
        watch.options.check([*inputs, output])
        windows = _prepare(student, teacher, sources, options, progress)
        _check_room(windows, options, topk_cache, [*inputs, output])
        facts = facts_of(device, student, teacher, sources, windows, options, output)
        watch.begin(bool(saving and saving.resume), facts)
        progress.say(
            f"{len(windows.train) * options.batch} training windows and {len(windows.held_out) * options.batch} held out, of "
            f"{options.window} tokens; batch {options.batch}, top-{options.topk}, precision {options.precision}, "
            f"adapter {device.adapter.label}"
        )
        targets = _teach(device, teacher, windows, options, progress, topk_cache, watch.profiler)
        watch.journal.add("teacher", seconds=watch.lap())
        key = _run_key(student, teacher, windows, options, device) if saving else {}
        best, loop = _distil(device, student, windows, targets, options, progress, saving, key, watch)
        record = _record(device, teacher, windows, best, loop, options)
        values = loop.student.net.params.unpack(best.values)
        if loop.signs is not None and best.bits is not None:
            record["signs"] = loop.signs.record(best.bits)
            values |= loop.signs.signs.payloads(best.bits)
        watch.lap()
        export(student, output, values if best.step else {}, record)
        size = {"bytes": output.stat().st_size, **sizes(output)}
        watch.journal.add("written", output=output.name, best_step=best.step, **size, seconds=watch.lap())
        loop.student.free()
        loop.student.net.free()
        try:
            quality = _measure(device, student, output, windows, targets, options, progress, watch.profiler)
        except NvgpuError as e:
            raise TrainingError(f"{output} was written but could not be measured: {e}") from e
        watch.journal.add("measured", **quality, seconds=watch.lap())
    if best.step == 0:
        progress.say(f"no evaluation beat the start (held-out KL {best.kl:.5f}): the start was written")
    return _result(loop, best, output, quality, record.get("signs"), device)


def _result(
    loop: Distillation,
    best: Best,
    output: Path,
    quality: dict[str, float],
    signs: dict[str, Any] | None,
    device: Device,
) -> TrainReport:
    state = loop.state
    return TrainReport(
        output=str(output),
        steps=state.done,
        skipped=state.skipped,
        unscored=state.unscored,
        diverged=state.diverged,
        best_step=best.step,
        kl_start=loop.start_kl,
        kl_best=best.kl,
        kl_written=quality["heldout_kl"],
        ppl_start=quality["perplexity_start"],
        ppl_written=quality["perplexity"],
        losses=state.losses,
        evals=state.evals,
        options=loop.options.record(),
        adapter=device.adapter.label,
        signs=signs,
    )


def _check_room(windows: Windows, options: TrainOptions, cached: Path | None, others: list[Path]) -> None:
    """The targets have a place: a cache file that is none of the run's other files, or host memory."""
    if cached is not None:
        check_target(cached, others)
        return
    batches = len(windows.train) + len(windows.held_out)
    rows = options.batch * options.window
    check_host_memory(Targets.nbytes(batches, rows, options.topk), "the teacher's top-k")


def _prepare(
    student: CmfFile,
    teacher: CmfFile,
    sources: Sequence[TextSource],
    options: TrainOptions,
    progress: Progress,
) -> Windows:
    """Every check that needs no device, and the windows."""
    ours, theirs = Geometry.of(student), Geometry.of(teacher)
    if ours.vocab_size != theirs.vocab_size:
        raise InputError(
            f"vocabulary sizes differ: {student.path} has {ours.vocab_size}, {teacher.path} has {theirs.vocab_size}"
        )
    if options.topk > ours.vocab_size:
        raise InputError(f"--topk {options.topk}: the vocabulary has {ours.vocab_size} tokens")
    require_same_tokens(student, teacher)
    for model, role, wanted in ((student, "student", True), (teacher, "teacher", False)):
        if wanted != any(entry.dtype == Dtype.BLR for entry in model.tensors.values()):
            found = "no binary low-rank tensor" if wanted else "binary low-rank tensors"
            raise InputError(f"{role} {model.path} has {found}; are student and teacher swapped?")
    for name in student.tensors:  # the device would find it only after the teacher's pass
        student.check_finite(name)
    tokenizer = Tokenizer.of(teacher)
    budget = options.tokens + options.eval_windows * options.window
    texts = split_budget(sources, tokenizer, budget, options.loss_on)
    for source, text in zip(sources, texts, strict=True):
        if len(text) < options.window:
            progress.say(
                f"--calib {source.path} gives {len(text)} tokens, less than one window of {options.window}: nothing of it is used"
            )
        elif not text.weights.any():
            progress.say(
                f"--calib {source.path} holds no answer: with --loss-on answer none of its rows counts"
            )
    windows = split(
        [text.ids for text in texts],
        window=options.window,
        batch=options.batch,
        eval_windows=options.eval_windows,
        seed=options.seed,
        where=", ".join(str(source.path) for source in sources),
        weights=None if options.loss_on == "all" else [text.weights for text in texts],
    )
    if tokenizer.chat_fallback_used:
        progress.say(f"{teacher.path} has no chat template: conversations are written as ChatML")
    for ids in (windows.train, windows.held_out):
        if int(ids.max()) >= ours.vocab_size:
            raise InputError(
                f"{teacher.path}: its tokenizer gives id {int(ids.max())}, the vocabulary has {ours.vocab_size}"
            )
    if windows.train_weights is not None:
        progress.say(
            f"--loss-on {options.loss_on}: {100 * windows.train_weights.mean():.1f} % of the training rows count; "
            f"{len(windows.train) - windows.scored_batches} of {len(windows.train)} batches have none and are left out"
        )
    return windows


def _teach(
    device: Device,
    teacher: CmfFile,
    windows: Windows,
    options: TrainOptions,
    progress: Progress,
    cached: Path | None,
    profiler: Profiler | None = None,
) -> Targets:
    """The targets of all batches, from the cache as far as it holds them."""
    batches = np.concatenate([windows.train, windows.held_out])
    rows = options.windows_at_once * options.window
    shape = (*batches.shape, options.topk)
    cache = TopkCache(cached, _targets_key(teacher, windows, options, device), shape) if cached else None
    missing = cache.missing if cache else list(range(len(batches)))
    if cache and len(missing) < len(batches):
        progress.say(
            f"{cache.path} holds the targets of {len(batches) - len(missing)} of {len(batches)} batches"
        )
    targets = cache.targets if cache else Targets.empty(*shape)
    vocab = Geometry.of(teacher).vocab_size
    if cache and int(targets.ids.max()) >= vocab:  # the device does not check indices
        raise InputError(
            f"--topk-cache {cache.path}: damaged: token id {int(targets.ids.max())} of a vocabulary of {vocab}"
        )
    if not missing:
        return targets
    net = Net(device, teacher, NetOptions(options.window, mixed=options.precision == "mixed"))
    executor = Executor(net, profiler=profiler)
    wrote = cache.wrote if cache else lambda batches: None
    try:
        with executor.rec.phase("teacher pass", whole=True):
            teacher_targets(executor, batches, rows, targets, progress, wrote, missing)
    except InputError as e:
        raise InputError(f"teacher {teacher.path}: {e}") from e
    executor.free()
    executor.net.free()
    return targets


def _targets_key(teacher: CmfFile, windows: Windows, options: TrainOptions, device: Device) -> dict[str, Any]:
    """What targets depend on."""
    return {
        "teacher": teacher.content_key(),
        "data": _data_hash(windows),
        "window": options.window,
        "top-k": options.topk,
        "precision": options.precision,
        "adapter": device.adapter.name,
    }


def _distil(
    device: Device,
    student: CmfFile,
    windows: Windows,
    targets: Targets,
    options: TrainOptions,
    progress: Progress,
    saving: StateOptions | None,
    key: dict[str, Any],
    watch: Watch,
) -> tuple[Best, Distillation]:
    signs = options.signs.spec(options.seed) if options.signs else None
    mixed = options.precision == "mixed"
    net = Net(device, student, NetOptions(options.window, trainable=True, mixed=mixed, signs=signs))
    keeper = Keeper(StateFolder(saving.folder, key, replace=saving.replace), saving.every) if saving else None

    def after_step(loop: Distillation) -> None:
        watch.after_step()
        if keeper is not None:
            keeper.after_step(loop)

    storable = partial(unstorable, student)
    loop = Distillation(
        Executor(net, profiler=watch.profiler),
        windows,
        targets,
        options,
        progress,
        storable,
        after_step,
        watch.journal,
    )
    if loop.signs is not None:
        progress.say(loop.signs.describe())
    resumed = saving is not None and _resume(loop, saving.resume, key, progress)
    if saving is not None and saving.resume is not None:
        watch.resumed(loop.state.done, loop.tried, len(loop.state.evals))
    try:
        with keeper.listening() if keeper else nullcontext():
            return loop.run(resumed), loop
    except TrainingError as e:
        raise TrainingError(f"{student.path}: {e}") from e


def _resume(loop: Distillation, folder: Path | None, key: dict[str, Any], progress: Progress) -> bool:
    """Whether the loop goes on from a state in `folder`."""
    if folder is None:
        return False
    steps = StateFolder(folder, key).restore(loop)
    if steps is None:
        progress.say(f"{folder} holds no complete state: the run starts at step 0")
        return False
    progress.say(f"going on from step {steps}, saved in {folder}")
    return True


def _run_key(
    student: CmfFile, teacher: CmfFile, windows: Windows, options: TrainOptions, device: Device
) -> dict[str, Any]:
    """What a state and the run that goes on from it must share."""
    return {
        "student": student.content_key(),
        "teacher": teacher.content_key(),
        "data": _data_hash(windows),
        "rows": _rows_hash(windows),
        "adapter": device.adapter.name,
        "matrix units": device.matrix_units,
        **{f"--{name.replace('_', '-')}": value for name, value in options.record().items()},
        **run_key(options.signs),
    }


def _measure(
    device: Device,
    student: CmfFile,
    output: Path,
    windows: Windows,
    targets: Targets,
    options: TrainOptions,
    progress: Progress,
    profiler: Profiler | None = None,
) -> dict[str, float]:
    """Held-out top-k KL of the written file, opened again: its scales are f16 now; perplexity of it and of the student."""
    mixed = options.precision == "mixed"
    tokens, weights = windows.held_out.reshape(-1), windows.held_out_weights

    def perplexity(model: CmfFile) -> float:
        return evaluate(
            device,
            model,
            tokens,
            window=options.window,
            mixed=mixed,
            progress=progress,
            weights=None if weights is None else weights.reshape(-1),
            profiler=profiler,
        ).ppl

    with CmfFile.open(output) as written:
        net = Net(device, written, NetOptions(options.window, trainable=True, mixed=mixed))
        loop = Distillation(Executor(net, profiler=profiler), windows, targets, options, progress)
        kl = loop.held_out_kl()
        loop.student.free()
        net.free()
        before, after = perplexity(student), perplexity(written)
    progress.say(
        f"written file: held-out KL {kl:.5f} (top-{options.topk}), perplexity {after:.3f} ({before:.3f} before training)"
    )
    return {"heldout_kl": kl, "perplexity": after, "perplexity_start": before}


def _record(
    device: Device, teacher: CmfFile, windows: Windows, best: Best, loop: Distillation, options: TrainOptions
) -> dict[str, Any]:
    """Provenance: options, versions, adapter and data hashes; no times, no paths, so that equal runs give equal bytes."""
    return {
        "tool": f"nvgpu {__version__}",
        "adapter": {
            "name": device.adapter.name,
            "backend": device.adapter.backend,
            "driver": device.adapter.driver,
        },
        "teacher": teacher.content_key(),
        "data_sha256": _data_hash(windows),
        "options": options.record(),
        "training_tokens": int(windows.train.size) * options.epochs,
        "steps": loop.state.done,
        "skipped": loop.state.skipped,
        "unscored": loop.state.unscored,
        "best_step": best.step,
        "heldout_kl_start": _finite(loop.start_kl),
        "heldout_kl_best": _finite(best.kl),
        "evals": [{key: _finite(value) for key, value in entry.items()} for entry in loop.state.evals],
    }


def _data_hash(windows: Windows) -> str:
    """Of the ids of all windows, in their order."""
    return hashlib.sha256(windows.train.tobytes() + windows.held_out.tobytes()).hexdigest()


def _rows_hash(windows: Windows) -> str | None:
    """Of the weights of all rows; None where all count."""
    if windows.train_weights is None or windows.held_out_weights is None:
        return None
    return hashlib.sha256(windows.train_weights.tobytes() + windows.held_out_weights.tobytes()).hexdigest()


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinities."""
    return value if math.isfinite(value) else None
