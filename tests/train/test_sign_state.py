"""Runs with signs that stop anywhere, or lose their device, and go on: the bytes of one that never stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wgpu
import wgpu.backends.wgpu_native as native

from nvgpu.errors import DeviceLostError, GpuError, InputError, Interrupted, OutOfMemoryError
from nvgpu.formats.text import TextSource
from nvgpu.gpu import Device, open_device
from nvgpu.progress import Silent
from nvgpu.train import state as state_module
from nvgpu.train.loop import Distillation
from nvgpu.train.options import TrainOptions
from nvgpu.train.run import StateOptions, train
from nvgpu.train.sign_options import SignOptions

SIGNS = SignOptions(opt="adam", lr=1e-2, warm=2)
OPTIONS = TrainOptions(
    tokens=320, window=16, batch=2, epochs=2, topk=4, eval_windows=2, eval_every=3, signs=SIGNS
)
STEPS = 20


def run(
    device: Device, inputs: Path, output: Path, saving: StateOptions | None, options: TrainOptions = OPTIONS
) -> bytes:
    sources = [TextSource.parse(str(inputs / "text.txt"))]
    models = inputs / "student.cmf", inputs / "teacher.cmf"
    report = train(device, *models, sources, output, options, Silent(), saving)
    assert report.steps == STEPS
    return output.read_bytes()


@pytest.fixture(scope="module")
def whole(device: Device, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return run(device, inputs, tmp_path_factory.mktemp("whole") / "out.cmf", None)


@pytest.mark.parametrize("opt", ["adam", "fact-mom", "fact"])
def test_a_resumed_run_writes_the_same_bytes(
    device: Device, inputs: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opt: str
) -> None:
    options = replace(OPTIONS, signs=replace(SIGNS, opt=opt))
    expected = whole if opt == "adam" else run(device, inputs, tmp_path / "whole.cmf", None, options)
    original, saving = state_module.Keeper.after_step, StateOptions(tmp_path / "state", every=3)

    def after_step(self: state_module.Keeper, loop: Distillation) -> None:
        if loop.state.done == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self, loop)

    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="--resume"):
        patch.setattr(state_module.Keeper, "after_step", after_step)
        run(device, inputs, tmp_path / "out.cmf", saving, options)
    kept = {path.name for path in (saving.folder / "step-00000007").iterdir()}
    assert {"signs.bits.npy", "signs.lat.npy", "signs.ema.npy", "best.bits.npy"} <= kept
    assert ("signs.mom.npy" in kept) == (opt != "fact") and ("signs.second.npy" in kept) == (opt == "adam")
    again = replace(saving, resume=saving.folder)
    assert run(device, inputs, tmp_path / "out.cmf", again, options) == expected


def test_refusals(device: Device, inputs: Path, whole: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    run(device, inputs, tmp_path / "out.cmf", StateOptions(folder, every=7))
    again = StateOptions(folder, every=7, resume=folder)
    for signs, message in (
        (None, "--train-signs was True, now it is False"),
        (replace(SIGNS, tau=0.125), "--sign-tau was 0.25, now it is 0.125"),
    ):
        with pytest.raises(InputError, match=message):
            run(device, inputs, tmp_path / "o.cmf", again, replace(OPTIONS, signs=signs))
    saved = folder / "step-00000014" / "signs.lat.npy"
    saved.write_bytes((folder / "step-00000014" / "signs.bits.npy").read_bytes())
    with pytest.raises(InputError, match="damaged"):
        run(device, inputs, tmp_path / "o.cmf", again)


@pytest.fixture
def own_device() -> Iterator[Device]:
    device = open_device()
    yield device
    device.close()


@pytest.mark.parametrize("error", [DeviceLostError, OutOfMemoryError])
@pytest.mark.parametrize("signs", [SIGNS, None])
def test_a_run_that_lost_its_device_resumes(
    own_device: Device,
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: Device,
    signs: SignOptions | None,
    error: type[GpuError],
) -> None:
    """The device fails inside the backward of step 8; another one goes on from the state behind step 6."""
    options = replace(OPTIONS, signs=signs)
    expected = run(device, inputs, tmp_path / "whole.cmf", None, options)
    saving, seen = StateOptions(tmp_path / "state", every=6), {"step": 0, "calls": 0}
    step, dispatch = Distillation.step, native.GPUComputePassEncoder.dispatch_workgroups
    raised = {
        DeviceLostError: wgpu.GPUValidationError("Parent device is lost"),
        OutOfMemoryError: wgpu.GPUOutOfMemoryError("no"),
    }[error]

    def counted(self: Distillation, batch: int) -> bool:
        seen["step"] += 1
        return step(self, batch)

    def failing(self: Any, *args: Any, **given: Any) -> Any:
        seen["calls"] += seen["step"] == 8
        if seen["calls"] > 150:
            raise raised
        return dispatch(self, *args, **given)

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(Distillation, "step", counted)
        patch.setattr(native.GPUComputePassEncoder, "dispatch_workgroups", failing)
        run(own_device, inputs, tmp_path / "out.cmf", saving, options)
    assert [path.name for path in saving.folder.iterdir()] == ["step-00000006"]
    again = replace(saving, resume=saving.folder)
    assert run(device, inputs, tmp_path / "out.cmf", again, options) == expected
