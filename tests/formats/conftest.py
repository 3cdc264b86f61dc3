"""Small model folders and files that the format tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.formats.cmf import CmfWriter
from nvgpu.formats.codecs import Dtype, encode
from nvgpu.formats.hf import import_hf
from tests.formats.small_folder import TINY, SmallFolder


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The bundled model's folder."""
    return TINY


@pytest.fixture(scope="session")
def tiny_f32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model as a CMF file with every tensor in f32."""
    path = tmp_path_factory.mktemp("cmf") / "tiny.cmf"
    import_hf(TINY, path, dtype="f32")
    return path


@pytest.fixture
def small(tmp_path: Path) -> SmallFolder:
    """A random two-layer model, not saved yet."""
    return SmallFolder(tmp_path / "small")


@pytest.fixture
def write_cmf(tmp_path: Path) -> Callable[..., Path]:
    """Write a CMF file of arrays by name; returns its path."""

    def write(
        arrays: dict[str, np.ndarray[Any, Any]],
        dtype: Dtype = Dtype.F32,
        tokenizer: bytes | None = None,
        header: dict[str, Any] | None = None,
        name: str = "m.cmf",
    ) -> Path:
        path = tmp_path / name
        entries = [(key, dtype, value.shape) for key, value in arrays.items()]
        with CmfWriter(path, header or {"arch": {}}, entries, tokenizer) as writer:
            for key, value in arrays.items():
                writer.write(key, encode(value, dtype, key))
        return path

    return write
