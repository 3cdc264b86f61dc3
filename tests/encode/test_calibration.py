"""Grams of a small model against float64, and calibrated compression: weighted errors, equal bytes, runs that go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nvgpu.encode import compress as compress_module
from nvgpu.encode.calibration import Calibration, compress_calibrated
from nvgpu.encode.compress import CompressOptions, is_body_linear
from nvgpu.encode.grams import SETS, GramFolder, capture
from nvgpu.errors import InputError, OutputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.hf import import_hf
from nvgpu.formats.text import TextSource
from nvgpu.gpu import Device, open_device
from nvgpu.progress import Silent
from nvgpu.ref import blocks
from tests.model.reference import reference_net
from tests.random_model import make_config, make_tensors, write_folder

OPTIONS = CompressOptions(4.0, "itq", paths=1)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration")
    config = make_config()
    write_folder(folder / "hf", config, make_tensors(config, 1))
    import_hf(folder / "hf", folder / "teacher.cmf")
    (folder / "text.txt").write_text(" ".join(f"t{i * i % 97}" for i in range(900)))
    return folder / "teacher.cmf"


def calibration(teacher: Path) -> Calibration:
    return Calibration((TextSource(teacher.with_name("text.txt")),), fit_tokens=320, sel_tokens=96, window=16)


def run(
    teacher: Path, output: Path, options: CompressOptions = OPTIONS, how: Calibration | None = None
) -> bytes:
    with CmfFile.open(teacher) as model:
        compress_calibrated(model, output, options, how, Silent(), device=open_device)
    assert [p.name for p in output.parent.iterdir() if p.name.startswith(output.name)] == [output.name]
    return output.read_bytes()


def test_grams_are_those_of_the_float64_net(
    device: Device, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
    linear = blocks.Scope.linear

    def spy(self: blocks.Scope, tail: str, x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        seen[self.prefix + tail] = x.T @ x / len(x)
        return linear(self, tail, x)

    monkeypatch.setattr(blocks.Scope, "linear", spy)
    folder = GramFolder(tmp_path)
    with CmfFile.open(teacher) as model:
        windows = calibration(teacher).windows(model, seed=1)
        assert len(windows["fit"]) == 20 and len(windows["sel"]) == 6
        capture(device, model, windows, folder, Silent())
        body = [name for name in model.tensors if is_body_linear(name)]
        for kind in SETS:
            reference_net(model).forward(windows[kind])
            for name in body:
                found = folder.read(name, kind)
                np.testing.assert_allclose(
                    found, seen[name], atol=2e-5 * np.abs(seen[name]).max(), err_msg=name
                )
    assert len(list(tmp_path.glob("*.gram"))) < 2 * len(body)  # shared inputs are kept once


def test_weighted_errors_fall_and_runs_repeat(teacher: Path, tmp_path: Path) -> None:
    how = calibration(teacher)
    first = run(teacher, tmp_path / "a.cmf", OPTIONS, how)
    assert run(teacher, tmp_path / "b.cmf", OPTIONS, how) == first
    assert run(teacher, tmp_path / "c.cmf", replace(OPTIONS, seed=7), how) != first
    assert run(teacher, tmp_path / "d.cmf") != first
    with CmfFile.open(tmp_path / "a.cmf") as model:
        assert model.header["provenance"]["compress"]["calibrated"] is True


def test_a_stopped_run_goes_on(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = calibration(teacher)
    whole = run(teacher, tmp_path / "whole.cmf", OPTIONS, how)
    encode, done = compress_module.encode, []

    def stop_at_the_fifth(name: str, *args: object) -> object:
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(name)
        return encode(name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(compress_module, "encode", stop_at_the_fifth)
    output = tmp_path / "out.cmf"
    with pytest.raises(KeyboardInterrupt):
        run(teacher, output, OPTIONS, how)
    assert not output.exists() and len(list((tmp_path / "out.cmf.partial").glob("*.row.json"))) == 4
    again: list[str] = []
    monkeypatch.setattr(
        compress_module, "encode", lambda name, *args: again.append(name) or encode(name, *args)
    )
    monkeypatch.setattr("nvgpu.encode.calibration.capture", lambda *args: pytest.fail("Grams are there"))
    assert run(teacher, output, OPTIONS, how) == whole
    assert again and not set(done) & set(again)


def test_what_another_run_left_is_dropped(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(compress_module, "encode", stop)
        run(teacher, tmp_path / "out.cmf", replace(OPTIONS, seed=3))
    assert (tmp_path / "out.cmf.partial").is_dir()
    plain = run(teacher, tmp_path / "plain.cmf")
    assert run(teacher, tmp_path / "out.cmf") == plain


def test_a_folder_of_something_else_is_left_alone(teacher: Path, tmp_path: Path) -> None:
    other = tmp_path / "out.cmf.partial"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="no folder of an unfinished compression"):
        run(teacher, tmp_path / "out.cmf")
    assert (other / "mine.txt").read_text() == "mine"


def test_too_little_text(teacher: Path, tmp_path: Path) -> None:
    how = replace(calibration(teacher), window=4096)
    with pytest.raises(InputError, match="found 0 whole windows of 4096 tokens, expected at least 2"):
        run(teacher, tmp_path / "out.cmf", OPTIONS, how)
    assert list(tmp_path.iterdir()) == []


def test_auto_takes_the_better_number_of_paths(teacher: Path, tmp_path: Path) -> None:
    how = calibration(teacher)
    sizes = {}
    for paths in (None, 1, 2):
        with CmfFile.open(teacher) as model:
            report = compress_calibrated(
                model,
                tmp_path / f"{paths}.cmf",
                replace(OPTIONS, paths=paths),
                how,
                Silent(),
                device=open_device,
            )
        sizes[paths] = {row.name: row for row in report.tensors}
    for name, row in sizes[None].items():
        assert row.sel_error == min(sizes[paths][name].sel_error for paths in (1, 2))
        assert row.bpw <= row.bpw_target
