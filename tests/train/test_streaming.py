"""Layers streamed under a memory budget: the bits of resident layers, in less memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nvgpu.errors import OutOfMemoryError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.hf import import_hf
from nvgpu.formats.text import TextSource
from nvgpu.gpu import Device, open_device
from nvgpu.model import net as net_module
from nvgpu.model.executor import Executor
from nvgpu.model.net import Net, NetOptions
from nvgpu.progress import Silent
from nvgpu.train.options import TrainOptions
from nvgpu.train.run import train
from nvgpu.train.targets import Targets, teacher_targets
from tests.random_model import make_config, make_tensors, write_folder

ROOT = Path(__file__).resolve().parents[2]
WINDOW, TOPK = 32, 8
OPTIONS = TrainOptions(tokens=256, window=WINDOW, batch=2, topk=TOPK, eval_windows=2, eval_every=2)


@pytest.fixture
def own_device() -> Iterator[Device]:
    device = open_device()
    yield device
    device.close()


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve layers, which take most of its memory."""
    folder = tmp_path_factory.mktemp("deep")
    kinds = ["linear_attention", "linear_attention", "full_attention"] * 4
    config = make_config(layer_types=kinds, hidden_size=256, intermediate_size=1024)
    write_folder(folder / "hf", config, make_tensors(config, 1))
    import_hf(folder / "hf", folder / "deep.cmf", dtype="f16")
    return folder / "deep.cmf"


def batches() -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    return np.random.default_rng(0).integers(0, 97, (3, 2 * WINDOW)).astype(np.uint32)


def targets(device: Device, path: Path) -> tuple[bytes, bytes, int | None]:
    with CmfFile.open(path) as model:
        executor = Executor(Net(device, model, NetOptions(WINDOW)))
        found = teacher_targets(executor, batches(), 2 * WINDOW, Targets.empty(3, 2 * WINDOW, TOPK), Silent())
        uploads = executor.net.stream.uploads if executor.net.stream else None
        executor.free()
        executor.net.free()
    return found.ids.tobytes(), found.p.tobytes(), uploads


def test_streamed_teacher_gives_the_same_bits_in_less_memory(own_device: Device, deep: Path) -> None:
    ids, p, uploads = targets(own_device, deep)
    assert uploads is None
    resident = own_device.memory.peak
    own_device.memory.peak = own_device.memory.live
    own_device.budget = resident * 2 // 3
    streamed = targets(own_device, deep)
    assert streamed == (ids, p, 12)  # each layer went up once for all batches
    assert own_device.memory.peak <= own_device.budget < resident


def test_a_budget_that_nothing_fits_in_is_an_error(own_device: Device, deep: Path) -> None:
    own_device.budget = 1 << 20
    with pytest.raises(OutOfMemoryError, match=r"buffer .* exceed the budget of 1048576 bytes \(--vram\)"):
        targets(own_device, deep)


def test_a_streamed_run_writes_the_same_file(
    device: Device, models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, student = models
    sources = [TextSource.parse(str(ROOT / "LICENSE"))]
    train(device, student, teacher, sources, tmp_path / "resident.cmf", OPTIONS, Silent())
    monkeypatch.setattr(net_module._Loader, "_exceeds", lambda self, budget: True)
    train(device, student, teacher, sources, tmp_path / "streamed.cmf", OPTIONS, Silent())
    assert (tmp_path / "resident.cmf").read_bytes() == (tmp_path / "streamed.cmf").read_bytes()
