"""A model of two small layers, its compressed student and a text, for whole runs that take a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvgpu.encode.compress import compress
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.hf import import_hf
from nvgpu.progress import Silent
from tests.random_model import make_config, make_tensors, write_folder


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with teacher.cmf, student.cmf and text.txt."""
    folder = tmp_path_factory.mktemp("inputs")
    config = make_config()
    write_folder(folder / "hf", config, make_tensors(config, 1))
    import_hf(folder / "hf", folder / "teacher.cmf")
    with CmfFile.open(folder / "teacher.cmf") as model:
        compress(
            model, folder / "student.cmf", bpw=4, method="svid", paths=1, embed_dtype=None, progress=Silent()
        )
    (folder / "text.txt").write_text(" ".join(f"t{i % 97}" for i in range(600)))
    return folder
