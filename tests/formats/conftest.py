"""Small model folders and files that the format tests share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.formats.cmf import CmfWriter
from nvgpu.formats.codecs import Dtype, encode
from nvgpu.formats.hf import import_hf
from nvgpu.formats.hf_config import read_config
from nvgpu.formats.safetensors_file import write_safetensors

TINY = Path(__file__).parents[2] / "examples" / "tiny-qwen3.5"
SMALL_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "dtype": "float32",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 4096,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}


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


class SmallFolder:
    """A random two-layer model in a folder; `tensors` and `config` may be changed before `save`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = json.loads(json.dumps(SMALL_CONFIG))
        rng = np.random.default_rng(7)
        self.tensors = {
            name: rng.standard_normal(shape).astype(np.float32)
            for name, shape in read_config(self.config, "small").shapes.items()
        }

    def save(self, shards: int = 1, index: bool = True) -> Path:
        """Write the folder; with several shards an index unless told otherwise."""
        self.path.mkdir(exist_ok=True)
        (self.path / "config.json").write_text(json.dumps(self.config))
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(TINY / name, self.path / name)
        names = list(self.tensors)
        weight_map = {}
        for i in range(shards):
            file = "model.safetensors" if shards == 1 else f"model-{i + 1:05}-of-{shards:05}.safetensors"
            part = names[i::shards]
            shapes = {name: self.tensors[name].shape for name in part}
            write_safetensors(self.path / file, Dtype.F32, shapes, (self.tensors[n] for n in part))
            weight_map.update(dict.fromkeys(part, file))
        if shards > 1 and index:
            (self.path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return self.path


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
