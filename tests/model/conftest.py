"""The bundled model as a CMF file, and its golden values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.hf import import_hf

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tiny-qwen3.5"


@pytest.fixture(scope="session")
def teacher_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundled") / "teacher.cmf"
    import_hf(EXAMPLE, path, dtype="f32")
    return path


@pytest.fixture
def teacher(teacher_path: Path) -> Iterator[CmfFile]:
    with CmfFile.open(teacher_path) as model:
        yield model


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray[Any, Any]]:
    with np.load(EXAMPLE / "golden.npz") as values:
        return dict(values)
