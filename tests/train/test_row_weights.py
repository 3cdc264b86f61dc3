"""`--loss-on answer`: only rows that predict an answer count, in training, in held-out evaluation and in `nvgpu eval`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import InputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.text import TextSource, split_budget
from nvgpu.formats.tokenizer import Tokenizer
from nvgpu.gpu import Device
from nvgpu.model.executor import Executor
from nvgpu.model.net import Net, NetOptions
from nvgpu.ops import tolerance as tol
from nvgpu.progress import Silent
from nvgpu.ref.trainer import Batch, train_steps
from nvgpu.train.evaluate import evaluate
from nvgpu.train.loop import Distillation
from nvgpu.train.options import TrainOptions
from nvgpu.train.run import TrainReport, train
from nvgpu.train.targets import Targets, teacher_targets
from nvgpu.train.windows import Windows, split
from tests.model.reference import reference_net

OPTIONS = TrainOptions(
    tokens=320, window=16, batch=2, topk=4, eval_windows=4, eval_every=5, precision="f32", loss_on="answer"
)


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations in the words of the small models' tokenizer; by ChatML, whose marks are words of their own here."""
    path = tmp_path_factory.mktemp("talk") / "talk.jsonl"
    words = [" ".join(f"t{(7 * i + j) % 97}" for j in range(3 + i % 9)) for i in range(80)]
    lines = [
        {"messages": [{"role": "user", "content": f" {q} "}, {"role": "assistant", "content": f" {a} "}]}
        for q, a in zip(words[::2], words[1::2], strict=True)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def run(device: Device, inputs: Path, calib: Path, output: Path, options: TrainOptions) -> TrainReport:
    student, teacher = inputs / "student.cmf", inputs / "teacher.cmf"
    return train(device, student, teacher, [TextSource(calib)], output, options, Silent())


def windows_of(inputs: Path, calib: Path) -> Windows:
    o = OPTIONS
    with CmfFile.open(inputs / "teacher.cmf") as teacher:
        budget = o.tokens + o.eval_windows * o.window
        (text,) = split_budget([TextSource(calib)], Tokenizer.of(teacher), budget, o.loss_on)
    return split(
        [text.ids],
        window=o.window,
        batch=o.batch,
        eval_windows=o.eval_windows,
        seed=o.seed,
        weights=[text.weights],
    )


@pytest.fixture(scope="module")
def trained(
    device: Device, inputs: Path, talk: Path, tmp_path_factory: pytest.TempPathFactory
) -> TrainReport:
    return run(device, inputs, talk, tmp_path_factory.mktemp("trained") / "out.cmf", OPTIONS)


def test_losses_follow_the_float64_trainer(
    device: Device, inputs: Path, talk: Path, trained: TrainReport
) -> None:
    o, windows = OPTIONS, windows_of(inputs, talk)
    assert windows.train_weights is not None and 0.2 < windows.train_weights.mean() < 0.8
    with CmfFile.open(inputs / "teacher.cmf") as teacher, CmfFile.open(inputs / "student.cmf") as student:
        executor = Executor(Net(device, teacher, NetOptions(o.window)))
        empty = Targets.empty(*windows.train.shape, o.topk)
        targets = teacher_targets(executor, windows.train, o.batch * o.window, empty, Silent())
        executor.free()
        executor.net.free()
        shape = (o.batch, o.window)
        batches = [
            Batch(
                windows.train[b].reshape(shape),
                targets.ids[b].reshape(*shape, -1),
                targets.p[b].reshape(*shape, -1),
                windows.row_weights(b).reshape(shape),
            )
            for b in windows.epoch_order()
        ]
        reference = train_steps(reference_net(student), batches, lr=o.lr, clip=o.clip, total=len(batches))
    assert trained.losses == pytest.approx(reference.losses, rel=tol.TRAINER_LOSS_REL)
    assert len(trained.losses) == 10 and trained.unscored == 0


def test_micro_batches_give_the_same_losses(
    device: Device, inputs: Path, talk: Path, trained: TrainReport, tmp_path: Path
) -> None:
    report = run(device, inputs, talk, tmp_path / "out.cmf", replace(OPTIONS, micro_batch=1))
    assert report.losses == pytest.approx(trained.losses, rel=1e-5)
    assert report.kl_start == pytest.approx(trained.kl_start, rel=1e-6)


def test_held_out_rows_are_weighted(device: Device, inputs: Path, talk: Path) -> None:
    windows = windows_of(inputs, talk)
    assert windows.held_out_weights is not None
    both: Any = np.concatenate([windows.train, windows.held_out])
    with CmfFile.open(inputs / "teacher.cmf") as teacher, CmfFile.open(inputs / "student.cmf") as student:
        executor = Executor(Net(device, teacher, NetOptions(OPTIONS.window)))
        empty = Targets.empty(*both.shape, OPTIONS.topk)
        targets = teacher_targets(executor, both, both.shape[1], empty, Silent())
        executor.free()
        executor.net.free()
        executor = Executor(Net(device, student, NetOptions(OPTIONS.window, trainable=True)))
        loop = Distillation(executor, windows, targets, OPTIONS, Silent())
        rows = np.array(
            [
                executor.loss(ids, targets.ids[b], targets.p[b])
                for b, ids in enumerate(windows.held_out, len(windows.train))
            ]
        )
        expected = np.average(rows.astype(np.float64), weights=windows.held_out_weights)
        assert loop.held_out_kl() == pytest.approx(expected, rel=1e-6)
        assert loop.held_out_kl() != pytest.approx(rows.mean(), rel=1e-3)
        # a batch of which no row counts is no step
        windows.train_weights[3] = 0  # type: ignore[index]
        before = executor.net.params.values.read()
        assert loop.step(3) is False and (loop.state.unscored, loop.state.skipped) == (1, 0)
        assert np.array_equal(executor.net.params.values.read(), before) and not loop.state.losses
        executor.free()
        executor.net.free()


def test_batches_without_a_row_are_counted(
    device: Device, inputs: Path, talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parted(*args: Any, **given: Any) -> Windows:
        windows = split(*args, **given)
        assert windows.train_weights is not None
        windows.train_weights[[2, 5]] = 0
        return windows

    monkeypatch.setattr("nvgpu.train.run.split", parted)
    report = run(device, inputs, talk, tmp_path / "out.cmf", OPTIONS)
    assert (report.steps, report.skipped, report.unscored) == (8, 0, 2)


def test_text_without_answers_is_an_error(device: Device, inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of the 320 training rows predicts a token of an assistant"):
        run(device, inputs, inputs / "text.txt", tmp_path / "out.cmf", OPTIONS)
    assert not (tmp_path / "out.cmf").exists()


def test_evaluation_scores_the_same_rows(device: Device, inputs: Path, talk: Path) -> None:
    windows = windows_of(inputs, talk)
    ids, weights = windows.train.reshape(-1), windows.train_weights
    assert weights is not None
    given: dict[str, Any] = {"window": 16, "progress": Silent()}
    with CmfFile.open(inputs / "teacher.cmf") as model:
        some = evaluate(device, model, ids, weights=weights.reshape(-1), **given)
        everything = evaluate(device, model, ids, weights=np.ones_like(weights).reshape(-1), **given)
        plain = evaluate(device, model, ids, **given)
        rest = evaluate(device, model, ids, weights=1 - weights.reshape(-1), **given)
        with pytest.raises(InputError, match="--loss-on answer: none of the 320 rows"):
            evaluate(device, model, ids, weights=np.zeros(ids.size, np.float32), **given)
    assert everything == plain
    assert some.tokens + rest.tokens == plain.tokens
    assert some.nll * some.tokens + rest.nll * rest.tokens == pytest.approx(plain.nll * plain.tokens)
