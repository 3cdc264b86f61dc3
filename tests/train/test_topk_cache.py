"""The teacher's targets on disk: the same run with and without, continued, and never used for something else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nvgpu.errors import InputError, OutputError
from nvgpu.formats.text import TextSource
from nvgpu.gpu import Device
from nvgpu.model.executor import Executor
from nvgpu.progress import Silent
from nvgpu.train import topk_cache
from nvgpu.train.options import TrainOptions
from nvgpu.train.run import train
from nvgpu.train.topk_cache import TopkCache

OPTIONS = TrainOptions(tokens=160, window=16, batch=2, topk=4, eval_windows=2, eval_every=3)
BATCHES = 6  # five to train on, one held out


def run(
    device: Device, inputs: Path, output: Path, cache: Path | None, options: TrainOptions = OPTIONS
) -> bytes:
    sources = [TextSource.parse(str(inputs / "text.txt"))]
    student, teacher = inputs / "student.cmf", inputs / "teacher.cmf"
    train(device, student, teacher, sources, output, options, Silent(), topk_cache=cache)
    return output.read_bytes()


def test_cached_targets_are_used_and_change_nothing(
    device: Device, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "targets"
    without = run(device, inputs, tmp_path / "a.cmf", None)
    assert run(device, inputs, tmp_path / "b.cmf", cache) == without
    held = cache.read_bytes()
    monkeypatch.setattr(Executor, "topk_of", None)  # no teacher pass is left
    assert run(device, inputs, tmp_path / "c.cmf", cache) == without
    assert cache.read_bytes() == held


def test_a_pass_that_was_cut_off_goes_on(
    device: Device, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, original, passes = tmp_path / "targets", Executor.topk_of, []

    def cut(self: Executor, parts: list[np.ndarray[tuple[int, ...], np.dtype[np.uint32]]], k: int) -> object:
        passes.append(len(parts))
        if len(passes) == 4:
            raise KeyboardInterrupt
        return original(self, parts, k)

    without = run(device, inputs, tmp_path / "a.cmf", None)
    monkeypatch.setattr(Executor, "topk_of", cut)
    with pytest.raises(KeyboardInterrupt):
        run(device, inputs, tmp_path / "b.cmf", cache)
    assert run(device, inputs, tmp_path / "b.cmf", cache) == without
    assert len(passes) == 4 + BATCHES - 3


@pytest.mark.parametrize(
    ("change", "part"), [({"topk": 5}, "top-k"), ({"seed": 1}, "data"), ({"window": 15}, "data, window")]
)
def test_a_cache_of_something_else_is_refused(
    device: Device, inputs: Path, tmp_path: Path, change: dict[str, int], part: str
) -> None:
    cache = tmp_path / "targets"
    run(device, inputs, tmp_path / "a.cmf", cache)
    held = cache.read_bytes()
    with pytest.raises(InputError, match=f"targets: made for another {part}"):
        run(device, inputs, tmp_path / "b.cmf", cache, TrainOptions(**{**OPTIONS.record(), **change}))
    assert cache.read_bytes() == held and not (tmp_path / "b.cmf").exists()


def test_other_files_are_left_alone(device: Device, inputs: Path, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(InputError, match=r"notes.txt: no cache of top-k targets"):
        run(device, inputs, tmp_path / "b.cmf", other)
    assert other.read_text() == "mine"
    with pytest.raises(InputError, match="is the input"):
        run(device, inputs, tmp_path / "b.cmf", inputs / "teacher.cmf")
    cache = tmp_path / "targets"
    TopkCache(cache, {"a": 1}, (2, 3, 4))
    cache.write_bytes(cache.read_bytes()[:-1])
    with pytest.raises(InputError, match="another size"):
        TopkCache(cache, {"a": 1}, (2, 3, 4))


def test_a_damaged_cache_is_refused(device: Device, inputs: Path, tmp_path: Path) -> None:
    cache = tmp_path / "targets"
    run(device, inputs, tmp_path / "a.cmf", cache)
    held = bytearray(cache.read_bytes())
    held[4096 + 7] = 0xFF
    cache.write_bytes(held)
    with pytest.raises(InputError, match="targets: damaged: token id"):
        run(device, inputs, tmp_path / "b.cmf", cache)


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(topk_cache.os, "posix_fallocate", full, raising=False)
    with pytest.raises(OutputError, match="targets: cannot be written"):
        TopkCache(tmp_path / "targets", {}, (2, 3, 4))
    assert not (tmp_path / "targets").exists()
