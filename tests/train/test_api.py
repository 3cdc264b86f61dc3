"""The Python side: the guide's examples run, `import nvgpu` is light, and logits are those of the reference."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nvgpu
from nvgpu.errors import InputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.ops import tolerance as tol
from tests.model.reference import reference_net

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"tokens": 320, "window": 16, "batch": 2, "eval_windows": 2, "topk": 4}


def test_the_public_names() -> None:
    assert sorted(nvgpu.__all__) == dir(nvgpu)
    assert all(getattr(nvgpu, name) is not None for name in nvgpu.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        nvgpu.nonsense  # noqa: B018


def test_importing_is_light() -> None:
    code = "import sys, nvgpu; print(sorted({'numpy', 'wgpu', 'numba', 'click', 'tokenizers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_guide(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("teacher.cmf", "student.cmf", "text.txt"):
        (tmp_path / name).symlink_to(inputs / name)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    report, quality, logits = (names[name] for name in ("report", "quality", "logits"))
    assert isinstance(report, nvgpu.TrainReport) and report.steps == 10
    assert isinstance(quality, nvgpu.Evaluation) and quality.windows == 8 and quality.kl is not None
    assert isinstance(logits, np.ndarray) and logits.shape == (3, 97)
    assert (tmp_path / "signs.cmf").exists() and list((tmp_path / "state").iterdir())


def test_logits_are_those_of_the_reference(inputs: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 97, (2, 11))
    with CmfFile.open(inputs / "student.cmf") as file:
        expected = reference_net(file).forward(ids).logits
    with nvgpu.load(inputs / "student.cmf", window=16) as model:
        found = model.logits(ids)
        assert found.dtype == np.float32
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        print("relative error of the logits", error)
        assert error < tol.GOLDEN_LOGITS
        assert np.array_equal(model.logits(ids[1]), found[1])
        assert np.array_equal(model.logits(list(ids[0, :5])), found[0, :5])
        for bad, message in (
            (np.zeros(17, int), "found 17 in a row, expected at most 16"),
            ([97], "found 97 to 97, expected 0 to 96"),
            ([-1], "found -1 to -1"),
            ([0.5], "expected whole numbers"),
            ([], "expected whole numbers"),
        ):
            with pytest.raises(InputError, match=message):
                model.logits(bad)


def test_options_and_settings(inputs: Path, tmp_path: Path) -> None:
    given = inputs / "student.cmf", inputs / "teacher.cmf", inputs / "text.txt", tmp_path / "out.cmf"
    with pytest.raises(TypeError, match="expected one of them"):
        nvgpu.train(*given, nvgpu.TrainOptions(), lr=1.0)
    with pytest.raises(TypeError, match="rate"):
        nvgpu.train(*given, rate=1.0)
    with pytest.raises(nvgpu.NvgpuError, match="--window: found 1"):
        nvgpu.train(*given, window=1)
    with pytest.raises(nvgpu.NvgpuError, match="--precision: found 'f8'"):
        nvgpu.evaluate(given[0], given[2], precision="f8")
    with pytest.raises(nvgpu.NvgpuError, match="--precision: found 'auto'"):
        nvgpu.load(given[0], precision="auto")
