"""Models for whole runs: two small layers and a text for runs of a second, and the bundled model with its student."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvgpu.encode.compress import CompressOptions, compress
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.hf import import_hf
from tests.random_model import make_config, make_tensors, write_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with teacher.cmf, student.cmf and text.txt."""
    folder = tmp_path_factory.mktemp("inputs")
    config = make_config()
    write_folder(folder / "hf", config, make_tensors(config, 1))
    import_hf(folder / "hf", folder / "teacher.cmf")
    with CmfFile.open(folder / "teacher.cmf") as model:
        compress(model, folder / "student.cmf", CompressOptions(bpw=4, method="svid", paths=1))
    (folder / "text.txt").write_text(" ".join(f"t{i % 97}" for i in range(600)))
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(teacher, student at 1.0 bits per weight)."""
    folder = tmp_path_factory.mktemp("models")
    teacher, student = folder / "teacher.cmf", folder / "student.cmf"
    import_hf(ROOT / "examples" / "tiny-qwen3.5", teacher)
    with CmfFile.open(teacher) as model:
        compress(model, student, CompressOptions(1.0, "svid-refit", paths=1, refine_signs=False))
    return teacher, student
