"""A random two-layer Qwen3.5 model as a Hugging Face folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu.formats.codecs import Dtype
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
