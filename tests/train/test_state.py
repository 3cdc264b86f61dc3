"""Saved states: a run that stops anywhere and goes on ends with the bytes of one that never stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nvgpu.errors import InputError, Interrupted, OutputError
from nvgpu.formats.text import TextSource
from nvgpu.gpu import Device
from nvgpu.progress import Silent
from nvgpu.train import state as state_module
from nvgpu.train.loop import Distillation
from nvgpu.train.options import TrainOptions
from nvgpu.train.run import StateOptions, train
from nvgpu.train.state import StateFolder

OPTIONS = TrainOptions(tokens=320, window=16, batch=2, epochs=2, topk=4, eval_windows=2, eval_every=3)
STEPS = 20
FLAGS = ("--tokens", "320", "--window", "16", "--batch", "2", "--epochs", "2", "--topk", "4")
FLAGS += ("--eval-windows", "2", "--eval-every", "3")


def run(
    device: Device, inputs: Path, output: Path, saving: StateOptions | None, options: TrainOptions = OPTIONS
) -> bytes:
    sources = [TextSource.parse(str(inputs / "text.txt"))]
    student, teacher = inputs / "student.cmf", inputs / "teacher.cmf"
    report = train(device, student, teacher, sources, output, options, Silent(), saving)
    assert report.steps == STEPS
    return output.read_bytes()


@pytest.fixture(scope="module")
def whole(device: Device, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return run(device, inputs, tmp_path_factory.mktemp("whole") / "out.cmf", None)


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """A signal arrives in the step before that many are done."""
    original = state_module.Keeper.after_step

    def after_step(self: state_module.Keeper, loop: Distillation) -> None:
        if loop.state.done == steps:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self, loop)

    monkeypatch.setattr(state_module.Keeper, "after_step", after_step)


@pytest.mark.parametrize("steps", [1, 7, 10, 19, 20])
def test_resumed_run_writes_the_same_bytes(
    device: Device, inputs: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    saving = StateOptions(tmp_path / "state", every=3)
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="--resume") as stopped:
        stop_after(patch, steps)
        run(device, inputs, tmp_path / "out.cmf", saving)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert not (tmp_path / "out.cmf").exists()
    assert [p.name for p in (tmp_path / "state").iterdir()] == [f"step-{steps:08d}"]
    again = replace(saving, resume=saving.folder)
    assert run(device, inputs, tmp_path / "out.cmf", again) == whole


def test_saving_changes_nothing(device: Device, inputs: Path, whole: bytes, tmp_path: Path) -> None:
    assert run(device, inputs, tmp_path / "out.cmf", StateOptions(tmp_path / "state", every=1)) == whole


def test_an_empty_folder_starts_at_step_0(device: Device, inputs: Path, whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / ".nvgpu-left.tmp").mkdir()
    saving = StateOptions(tmp_path / "state", resume=tmp_path / "state")
    assert run(device, inputs, tmp_path / "out.cmf", saving) == whole
    (tmp_path / "state" / ".nvgpu-left.tmp" / "more").mkdir(parents=True)
    assert run(device, inputs, tmp_path / "out.cmf", replace(saving, every=20)) == whole
    assert [p.name for p in (tmp_path / "state").iterdir()] == ["step-00000020"]  # what a kill left is gone


def test_refusals(device: Device, inputs: Path, whole: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    saving = StateOptions(folder, every=7)
    run(device, inputs, tmp_path / "out.cmf", saving)
    again = replace(saving, resume=folder)
    with pytest.raises(InputError, match="no such folder"):
        run(device, inputs, tmp_path / "o.cmf", replace(saving, resume=tmp_path / "missing"))
    with pytest.raises(InputError, match=r"another run: --lr was 0.03, now it is 0.02"):
        run(device, inputs, tmp_path / "o.cmf", again, replace(OPTIONS, lr=0.02))
    saved = folder / "step-00000014"
    document = json.loads((saved / "state.json").read_text())
    document["state"]["index"] = "seven"
    (saved / "state.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="damaged"):
        run(device, inputs, tmp_path / "o.cmf", again)
    (saved / "m1.npy").write_bytes((saved / "m1.npy").read_bytes()[:-4])
    with pytest.raises(InputError, match="damaged"):
        run(device, inputs, tmp_path / "o.cmf", again)
    assert not (tmp_path / "o.cmf").exists()


def test_a_failed_save_is_said_and_keeps_the_state_before(
    device: Device, inputs: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = StateFolder.save, iter(range(100))

    def save(self: StateFolder, loop: Distillation) -> Path:
        if next(calls) >= 2:
            raise OutputError(f"{self.path}: cannot be written: no space left on device")
        return original(self, loop)

    monkeypatch.setattr(StateFolder, "save", save)
    assert run(device, inputs, tmp_path / "out.cmf", StateOptions(tmp_path / "state", every=4)) == whole
    assert [p.name for p in (tmp_path / "state").iterdir()] == ["step-00000008"]


@pytest.mark.parametrize("replace_state", [False, True])
def test_a_full_disk_is_said_and_the_run_goes_on(
    device: Device,
    inputs: Path,
    whole: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    replace_state: bool,
) -> None:
    """Between steps 5 and 11 no file may grow beyond 1000 bytes."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder, notes = tmp_path / "state", Notes()
    original = state_module.Keeper.after_step
    held = []

    def after_step(self: state_module.Keeper, loop: Distillation) -> None:
        full = 5 <= loop.state.done <= 11
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000 if full else soft, hard))
        try:
            original(self, loop)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        held.append([p.name for p in folder.iterdir()])

    monkeypatch.setattr(state_module.Keeper, "after_step", after_step)
    saving = StateOptions(folder, every=4, replace=replace_state)
    sources = [TextSource.parse(str(inputs / "text.txt"))]
    models = inputs / "student.cmf", inputs / "teacher.cmf"
    train(device, *models, sources, tmp_path / "out.cmf", OPTIONS, notes, saving)
    assert (tmp_path / "out.cmf").read_bytes() == whole
    (line,) = [line for line in notes.lines if "the state was not saved" in line]
    assert ("there is none to go on from" if replace_state else "the one before it is kept") in line
    assert line.endswith("step-00000008: cannot be written: file too large")
    assert held[7] == ([] if replace_state else ["step-00000004"])
    assert held[11] == ["step-00000012"] and held[-1] == ["step-00000020"]


def test_replacing_removes_the_state_before_first(
    device: Device, inputs: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = tmp_path / "state", []

    def write(path: Path, data: bytes, shown: Path) -> None:
        seen.append(len(list(folder.glob("step-*"))))
        original_write(path, data, shown)

    original_write = state_module._write
    monkeypatch.setattr(state_module, "_write", write)
    saving = StateOptions(folder, every=4)
    assert run(device, inputs, tmp_path / "out.cmf", saving) == whole
    assert set(seen) == {0, 1}
    seen.clear()
    again = StateOptions(tmp_path / "other", every=4, replace=True)
    folder = tmp_path / "other"
    assert run(device, inputs, tmp_path / "out.cmf", again) == whole
    assert set(seen) == {0}
    assert [p.name for p in folder.iterdir()] == ["step-00000020"]


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def command(inputs: Path, output: Path, state: Path, *more: str) -> list[str]:
    models = [str(inputs / name) for name in ("student.cmf", "teacher.cmf")]
    given = ["--calib", str(inputs / "text.txt"), "-o", str(output), "--state-dir", str(state)]
    return [sys.executable, "-m", "nvgpu", "train", *models, *given, "--state-every", "1", *FLAGS, *more]


def test_killed_at_random_moments(inputs: Path, whole: bytes, tmp_path: Path) -> None:
    """kill -9 while every step is saved: each start goes on from a complete state, and the end has the same bytes."""
    chance = random.Random(0)
    state, output = tmp_path / "state", tmp_path / "out.cmf"
    state.mkdir()
    for _ in range(3):
        process = subprocess.Popen(
            command(inputs, output, state, "--resume", str(state)), stdout=-3, stderr=-3
        )
        deadline = time.monotonic() + 60
        reached = len(list(state.glob("step-*/state.json")))
        while time.monotonic() < deadline and process.poll() is None and not reached:
            time.sleep(0.01)
            reached = len(list(state.glob("step-*/state.json")))
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.wait()
    done = subprocess.run(
        command(inputs, output, state, "--resume", str(state)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert output.read_bytes() == whole


def test_ctrl_c_saves_and_says_how_to_go_on(inputs: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    process = subprocess.Popen(
        command(inputs, tmp_path / "out.cmf", state, "--epochs", "2000"), stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(state.glob("step-*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.rstrip().endswith(f"--resume {state}")
    assert "Traceback" not in err
    assert not (tmp_path / "out.cmf").exists()
