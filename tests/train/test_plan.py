"""`plan` against what runs take: the peak of every stage, from headers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.encode.compress import CompressOptions, compress, plan_ranks
from nvgpu.errors import InputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.hf import import_hf
from nvgpu.formats.text import TextSource
from nvgpu.gpu import Device, Ledger, open_device
from nvgpu.model import net as net_module
from nvgpu.model.headers import Headers
from nvgpu.progress import Silent
from nvgpu.train import run as run_module
from nvgpu.train.options import TrainOptions
from nvgpu.train.plan import Plan, plan, probed
from nvgpu.train.run import train
from nvgpu.train.sign_options import SignOptions
from tests.random_model import make_config, make_tensors, write_folder

BASE = TrainOptions(tokens=64, window=16, batch=2, topk=4, eval_windows=2, precision="f32")
NEAR = 0.10


@pytest.fixture(scope="module")
def own_device() -> Iterator[Device]:
    device = open_device()
    yield device
    device.close()


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with teacher.cmf and student.cmf of three layers, which take most of their memory, and text.txt."""
    folder = tmp_path_factory.mktemp("deep")
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    config = make_config(layer_types=kinds, hidden_size=128, intermediate_size=256)
    write_folder(folder / "hf", config, make_tensors(config, 1))
    import_hf(folder / "hf", folder / "teacher.cmf", dtype="f16")
    with CmfFile.open(folder / "teacher.cmf") as model:
        compress(model, folder / "student.cmf", CompressOptions(3, "svid", paths=2))
    (folder / "text.txt").write_text(" ".join(f"t{i % 97}" for i in range(3000)))
    return folder


def planned(device: Device, folder: Path, options: TrainOptions) -> Plan:
    with CmfFile.open(folder / "teacher.cmf") as teacher, CmfFile.open(folder / "student.cmf") as student:
        return plan(Ledger.of(device), Headers.of(teacher), Headers.of(student), options)


def measured(
    device: Device, folder: Path, options: TrainOptions, output: Path, patch: pytest.MonkeyPatch
) -> list[int]:
    """Peaks of the stages of a run."""
    peaks: list[int] = []

    def watched(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            device.memory.peak = device.memory.live
            found = work(*args, **given)
            peaks.append(device.memory.peak)
            return found

        return call

    for name in ("_teach", "_distil", "_measure"):
        patch.setattr(run_module, name, watched(getattr(run_module, name)))
    sources = [TextSource(folder / "text.txt")]
    train(device, folder / "student.cmf", folder / "teacher.cmf", sources, output, options, Silent())
    return peaks


SETTINGS = {
    "base": BASE,
    "window": replace(BASE, window=32),
    "batch": replace(BASE, batch=4, eval_windows=4),
    "micro": replace(BASE, batch=4, eval_windows=4, micro_batch=2),
    "signs": replace(BASE, signs=SignOptions(opt="adam")),
    "signs, micro": replace(BASE, micro_batch=1, signs=SignOptions()),
    "mixed": replace(BASE, precision="mixed"),
}


@pytest.mark.parametrize(
    ("name", "streamed"),
    [
        *((name, False) for name in SETTINGS),
        ("base", True),
        ("micro", True),
        ("signs", True),
        ("mixed", True),
    ],
)
def test_peaks(
    own_device: Device, deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, streamed: bool
) -> None:
    options = SETTINGS[name]
    own_device.budget = 0
    resident = planned(own_device, deep, options)
    if streamed:
        monkeypatch.setattr(net_module._Loader, "_exceeds", lambda self, budget: True)
    found = planned(own_device, deep, options)
    assert found.fits and [s.name for s in found.stages] == ["teacher pass", "training", "measurement"]
    assert (found.stages[0].streamed > 0) is streamed
    assert not streamed or found.stages[0].kinds["layers"] < resident.stages[0].kinds["layers"]
    peaks = measured(own_device, deep, options, tmp_path / "out.cmf", monkeypatch)
    assert own_device.memory.live == 0
    for stage, peak in zip(found.stages, peaks, strict=True):
        print(f"{name}, streamed {streamed}: {stage.name}: planned {stage.peak}, measured {peak}")
        assert stage.peak == pytest.approx(peak, rel=NEAR)
        assert sum(stage.kinds.values()) == stage.peak
        assert stage.largest[1] <= stage.peak


def test_the_bundled_model(
    own_device: Device, models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_device.budget = 0
    teacher, student = models
    (tmp_path / "teacher.cmf").symlink_to(teacher)
    (tmp_path / "student.cmf").symlink_to(student)
    (tmp_path / "text.txt").write_text((Path(__file__).resolve().parents[2] / "LICENSE").read_text())
    options = replace(BASE, window=32, precision="mixed")
    found = planned(own_device, tmp_path, options)
    peaks = measured(own_device, tmp_path, options, tmp_path / "out.cmf", monkeypatch)
    assert [s.peak for s in found.stages] == pytest.approx(peaks, rel=NEAR)


def test_a_student_that_is_not_made_yet(own_device: Device, deep: Path) -> None:
    own_device.budget = 0
    with CmfFile.open(deep / "teacher.cmf") as model:
        teacher = Headers.of(model)
        student = teacher.compressed(
            {n: r[2] for n, r in plan_ranks(model, CompressOptions(3, paths=2)).items()}, 2
        )
    found = plan(Ledger.of(own_device), teacher, student, BASE)
    made = planned(own_device, deep, BASE)
    assert [s.peak for s in found.stages] == [s.peak for s in made.stages]
    assert found.bpw == made.bpw and 2 < found.bpw <= 3
    assert found.student_bytes == made.student_bytes


def test_the_adapter_is_not_opened_and_no_weight_is_read(
    own_device: Device, deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **given: Any) -> Any:
        raise AssertionError("a weight was decoded")

    monkeypatch.setattr(CmfFile, "array", refuse)
    own_device.budget = 0
    with CmfFile.open(deep / "teacher.cmf") as teacher, CmfFile.open(deep / "student.cmf") as student:
        headers = Headers.of(teacher), Headers.of(student)
    found = plan(Ledger.of_adapter(own_device.adapter), *headers, BASE)
    assert found.asdict() == plan(Ledger.of(own_device), *headers, BASE).asdict()


def test_what_does_not_fit(own_device: Device, deep: Path) -> None:
    own_device.budget = 1 << 20
    found = planned(own_device, deep, BASE)
    own_device.budget = 0
    assert not found.fits and "exceed the budget of 1048576 (--vram)" in str(found.stages[0].problem)
    with CmfFile.open(deep / "teacher.cmf") as teacher, CmfFile.open(deep / "student.cmf") as student:
        headers = Headers.of(teacher), Headers.of(student)
    small = Ledger(own_device.adapter, own_device.features, {**own_device.limits, "max-buffer-size": 40000})
    found = plan(small, *headers, replace(BASE, batch=8, eval_windows=8, window=64))
    assert not found.fits and found.limit == 40000
    assert all("bytes, the device allows 40000" in str(stage.problem) for stage in found.stages)


def test_models_that_do_not_match(own_device: Device, deep: Path) -> None:
    with CmfFile.open(deep / "teacher.cmf") as teacher, CmfFile.open(deep / "student.cmf") as student:
        headers = Headers.of(teacher), Headers.of(student)
    with pytest.raises(InputError, match="are student and teacher swapped"):
        plan(Ledger.of(own_device), *reversed(headers), BASE)
    with pytest.raises(InputError, match="--topk 128: the vocabulary has 97"):
        plan(Ledger.of(own_device), *headers, replace(BASE, topk=128))


def test_the_probe_times_every_kernel(own_device: Device, inputs: Path) -> None:
    own_device.budget = 0
    found = planned(own_device, inputs, replace(BASE, micro_batch=1, signs=SignOptions()))
    live = own_device.memory.live
    timed = probed(found, own_device)
    assert own_device.memory.live == live
    assert timed.seconds_per_step and timed.seconds_per_teacher_batch
    assert np.isfinite(timed.seconds_per_step) and timed.seconds_per_step > timed.seconds_per_teacher_batch
    calls = found.stages[1].calls
    assert {"adam", "kl_topk"} <= {call.label.partition(".")[0] for call in calls}
    assert sum(calls.values()) > len(calls)
