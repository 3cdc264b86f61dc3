"""Whole runs on the bundled model: against the float64 trainer, repeated, and in micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nvgpu.errors import TrainingError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.text import TextSource, split_budget
from nvgpu.formats.tokenizer import Tokenizer
from nvgpu.gpu import Device
from nvgpu.model.executor import Executor
from nvgpu.model.net import Net, NetOptions
from nvgpu.ops import tolerance as tol
from nvgpu.progress import Silent
from nvgpu.ref.trainer import Batch, train_steps
from nvgpu.train.export import unstorable
from nvgpu.train.loop import Distillation
from nvgpu.train.options import TrainOptions
from nvgpu.train.run import TrainReport, train
from nvgpu.train.targets import Targets, teacher_targets
from nvgpu.train.windows import split
from tests.model.reference import reference_net

ROOT = Path(__file__).resolve().parents[2]
TEXT = ROOT / "LICENSE"
OPTIONS = TrainOptions(
    tokens=10 * 2 * 48, window=48, batch=2, lr=3e-2, topk=16, eval_windows=2, eval_every=10
)


def run(device: Device, models: tuple[Path, Path], output: Path, options: TrainOptions) -> TrainReport:
    teacher, student = models
    return train(device, student, teacher, [TextSource.parse(str(TEXT))], output, options, Silent())


@pytest.fixture(scope="module")
def trained(
    device: Device, models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainReport, bytes]:
    output = tmp_path_factory.mktemp("trained") / "trained.cmf"
    return run(device, models, output, OPTIONS), output.read_bytes()


def test_losses_follow_the_float64_trainer(
    device: Device, models: tuple[Path, Path], trained: tuple[TrainReport, bytes]
) -> None:
    report, _ = trained
    o = OPTIONS
    with CmfFile.open(models[0]) as teacher, CmfFile.open(models[1]) as student:
        budget = o.tokens + o.eval_windows * o.window
        tokens = split_budget([TextSource.parse(str(TEXT))], Tokenizer.of(teacher), budget)
        ids = [part.ids for part in tokens]
        windows = split(ids, window=o.window, batch=o.batch, eval_windows=o.eval_windows, seed=o.seed)
        executor = Executor(Net(device, teacher, NetOptions(o.window)))
        targets = teacher_targets(
            executor, windows.train, o.batch * o.window, Targets.empty(*windows.train.shape, o.topk), Silent()
        )
        executor.free()
        executor.net.free()
        shape = (o.batch, o.window, -1)
        batches = [
            Batch(
                windows.train[b].reshape(o.batch, o.window),
                targets.ids[b].reshape(shape),
                targets.p[b].reshape(shape),
            )
            for b in windows.epoch_order()
        ]
        reference = train_steps(reference_net(student), batches, lr=o.lr, clip=o.clip, total=len(batches))
    print("losses", [f"{x:.5f}" for x in report.losses], "reference", [f"{x:.5f}" for x in reference.losses])
    assert len(report.losses) == 10
    assert report.losses == pytest.approx(reference.losses, rel=tol.TRAINER_LOSS_REL)
    assert report.losses[-1] <= 0.9 * report.losses[0]
    assert report.kl_best < report.kl_start and report.kl_written == pytest.approx(report.kl_best, rel=1e-2)
    assert report.ppl_written < report.ppl_start


def test_the_same_run_gives_the_same_bytes(
    device: Device, models: tuple[Path, Path], trained: tuple[TrainReport, bytes], tmp_path: Path
) -> None:
    again = run(device, models, tmp_path / "again.cmf", OPTIONS)
    assert again.losses == trained[0].losses
    assert (tmp_path / "again.cmf").read_bytes() == trained[1]


def test_micro_batches_give_the_same_losses(
    device: Device, models: tuple[Path, Path], trained: tuple[TrainReport, bytes], tmp_path: Path
) -> None:
    report = run(device, models, tmp_path / "micro.cmf", replace(OPTIONS, micro_batch=1))
    assert report.losses == pytest.approx(trained[0].losses, rel=1e-5)


def test_only_scales_and_gains_change(
    models: tuple[Path, Path], trained: tuple[TrainReport, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "trained.cmf"
    path.write_bytes(trained[1])
    with CmfFile.open(models[1]) as before, CmfFile.open(path) as after:
        assert list(before.tensors) == list(after.tensors)
        for name, entry in before.tensors.items():
            found = after.tensors[name]
            assert (found.dtype, found.shape, found.nbytes) == (entry.dtype, entry.shape, entry.nbytes)
            frozen = any(
                part in name
                for part in ("embed_tokens", "in_proj_a", "in_proj_b", "conv1d", "A_log", "dt_bias")
            )
            assert np.array_equal(before.raw(name), after.raw(name)) == (
                frozen or "linear_attn.norm" in name
            ), name
        assert before.tokenizer_json == after.tokenizer_json
        record = after.header["provenance"]["nvg_train"]
    assert record["steps"] == 10 and record["options"]["lr"] == OPTIONS.lr
    assert str(models[0].parent) not in str(record)


def test_nothing_better_writes_the_start(device: Device, models: tuple[Path, Path], tmp_path: Path) -> None:
    """A learning rate too small to move anything: the start is written, byte for byte in every payload."""
    options = replace(OPTIONS, tokens=2 * 2 * 48, lr=1e-30)
    report = run(device, models, tmp_path / "start.cmf", options)
    assert (
        report.best_step == 0 and report.kl_best == report.kl_start and report.ppl_written == report.ppl_start
    )
    with CmfFile.open(models[1]) as before, CmfFile.open(tmp_path / "start.cmf") as after:
        assert all(np.array_equal(before.raw(name), after.raw(name)) for name in before.tensors)


def test_non_finite_steps_are_skipped_and_then_an_error(device: Device, models: tuple[Path, Path]) -> None:
    o = replace(OPTIONS, window=16, batch=1, eval_windows=1, epochs=30)
    ids = np.arange(17 * 16, dtype=np.uint32)
    windows = split([ids], window=16, batch=1, eval_windows=1, seed=1)
    with CmfFile.open(models[0]) as teacher, CmfFile.open(models[1]) as student:
        executor = Executor(Net(device, teacher, NetOptions(16)))
        every = np.concatenate([windows.train, windows.held_out])
        targets = teacher_targets(executor, every, 16, Targets.empty(*every.shape, 16), Silent())
        executor.free()
        executor.net.free()
        executor = Executor(Net(device, student, NetOptions(16, trainable=True)))
    loop = Distillation(executor, windows, targets, o, Silent())
    start = executor.net.params.values.read()
    targets.p[0] = np.nan
    assert loop.step(0) is False and loop.state.skipped == 1
    assert np.array_equal(executor.net.params.values.read(), start)
    assert not executor.net.params.grads.read().any()
    assert loop.step(1) is True and loop.state.skipped_in_a_row == 0
    targets.p[:-1] = np.nan
    with pytest.raises(TrainingError, match="24 steps in a row were not finite"):
        loop.run()
    executor.free()
    executor.net.free()


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def loop(device: Device, models: tuple[Path, Path]) -> Iterator[Distillation]:
    """A short run that evaluates once it has taken eight steps, ready to start."""
    o = replace(OPTIONS, window=16, batch=1, eval_windows=1, eval_every=8, epochs=4)
    windows = split([np.arange(17 * 16, dtype=np.uint32)], window=16, batch=1, eval_windows=1, seed=1)
    with CmfFile.open(models[0]) as teacher, CmfFile.open(models[1]) as student:
        executor = Executor(Net(device, teacher, NetOptions(16)))
        every = np.concatenate([windows.train, windows.held_out])
        targets = teacher_targets(executor, every, 16, Targets.empty(*every.shape, 16), Silent())
        executor.free()
        executor.net.free()
        executor = Executor(Net(device, student, NetOptions(16, trainable=True)))
    yield Distillation(executor, windows, targets, o, Notes())
    executor.free()
    executor.net.free()


def test_a_run_that_diverges_keeps_its_best(loop: Distillation) -> None:
    step = loop.step

    def then_not_finite(batch: int) -> bool:
        if loop.state.done == 8:
            loop.targets.p[:-1] = np.nan
        return step(batch)

    loop.step = then_not_finite  # type: ignore[method-assign]
    best = loop.run()
    assert best.step == 8 and best.kl < loop.start_kl and loop.state.diverged
    assert loop.state.skipped == 24 and isinstance(loop.progress, Notes)
    assert (
        "the run diverged: 24 steps" in loop.progress.lines[-1]
        and "a lower --lr may help" in loop.progress.lines[-1]
    )


def test_a_checkpoint_that_cannot_be_written_is_not_the_best(loop: Distillation) -> None:
    loop.unstorable = lambda values: "tensor x: too large" if "model.norm.weight" in values else None
    loop.options = replace(loop.options, epochs=1)
    assert loop.run().step == 0 and isinstance(loop.progress, Notes)
    assert "step 8 cannot become the best: tensor x: too large" in loop.progress.lines


def test_a_start_that_is_not_finite_is_an_error(loop: Distillation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "held_out_kl", lambda: float("nan"))
    with pytest.raises(TrainingError, match="held-out KL before training is nan"):
        loop.run()


def test_what_can_be_stored(models: tuple[Path, Path]) -> None:
    name = "model.layers.0.mlp.up_proj.weight#0.h"
    with CmfFile.open(models[1]) as student:
        assert unstorable(student, {name: np.full(3, 65504, np.float32)}) is None
        for value in (1e5, np.inf, np.nan):
            found = unstorable(student, {name: np.full(3, value, np.float32)})
            assert found is not None and name in found


def test_evaluations_that_are_not_finite(
    device: Device, models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kls = iter([5.0, 4.0, float("nan"), 4.0])
    monkeypatch.setattr(Distillation, "held_out_kl", lambda self: next(kls))
    run(device, models, tmp_path / "out.cmf", replace(OPTIONS, tokens=2 * 2 * 48, eval_every=1))
    with CmfFile.open(tmp_path / "out.cmf") as written:
        record = written.header["provenance"]["nvg_train"]
    assert record["best_step"] == 1 and [e["heldout_kl"] for e in record["evals"]] == [4.0, None]


def test_memory_does_not_grow(device: Device, models: tuple[Path, Path], tmp_path: Path) -> None:
    before = (device.memory.live, device.memory.count)
    run(device, models, tmp_path / "out.cmf", replace(OPTIONS, tokens=2 * 2 * 48))
    assert (device.memory.live, device.memory.count) == before
