"""What tools/fuzz.py feeds mutated bytes to: per format small valid seeds, and an opener that reads all there is."""

from __future__ import annotations

import io
import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from nvgpu.errors import NvgpuError
from nvgpu.formats import codecs
from nvgpu.formats.blr import BlrPath, BlrTensor, pack_signs
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.cmf_writer import CmfWriter
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.hf_config import read_config
from nvgpu.formats.safetensors_file import open_safetensors, write_safetensors
from nvgpu.formats.tokenizer import Tokenizer
from nvgpu.model.verify import verify
from nvgpu.train.loop import Distillation
from nvgpu.train.state import StateFolder
from nvgpu.train.topk_cache import TopkCache

Array = np.ndarray[Any, Any]

_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}
_TOPK_SHAPE, _TOPK_KEY = (3, 4, 2), {"teacher": "a", "k": 2}
_STATE_COUNT = 5
_ROWS_READ = 4  # of a BLR tensor, whose dense form may be far larger than its payload


@dataclass(frozen=True)
class Target:
    """`seeds` are valid files; `focus` is how many bytes at the start are mutated most; `open` takes a file's path."""

    name: str
    seeds: list[bytes]
    focus: int
    open: Callable[[Path], object]


def targets() -> Iterator[Target]:
    """All formats; a seed is opened before it is used."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed"
        for target in (_cmf(path), _safetensors(path), _tokenizer(), _blr(), _topk(path), _state()):
            for seed in target.seeds:
                path.write_bytes(seed)
                target.open(path)
            yield target


def _blr_tensor(m: int, n: int) -> BlrTensor:
    rng = np.random.default_rng(m + n)
    h, g, middle = (rng.standard_normal(k).astype(np.float16) for k in (m, n, 8))
    signs = pack_signs(rng.standard_normal((m, 8))), pack_signs(rng.standard_normal((8, n)))
    return BlrTensor(m, n, 8, (BlrPath(h, middle, g, *signs),) * 2)


def payload_of(dtype: Dtype, values: Array) -> bytes:
    """A payload of a matrix in any type; of its shape alone in blr, which has no encoder here."""
    if dtype == Dtype.BLR:
        return _blr_tensor(*values.shape).pack()
    if dtype == Dtype.VBIT:
        data = codecs.encode(values, Dtype.VBIT_RO, "w").tobytes()
        head = len(values) + values.size // 16
        return data[:head] + data[head + 4 * (len(values) + 1) :]
    if dtype == Dtype.Q1S:
        return codecs.encode(values, Dtype.Q1, "w").tobytes() + struct.pack("<IIe", 1, 3, 0.5)
    return codecs.encode(values, dtype, "w").tobytes()


def _tokenizer_json() -> bytes:
    added = [{"id": 4, "content": "<e>", "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True}]  # fmt: skip
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": [["a", "b"]]}
    split = {"type": "Split", "pattern": {"Regex": "\\s+|\\S+"}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "post_processor": None,
            "decoder": level,
            "model": model,
        }
    ).encode()


def _cmf(path: Path) -> Target:
    config = read_config(_CONFIG, "seed")
    rng = np.random.default_rng(0)
    seeds = []
    for turn in range(3):
        entries, payloads = [], []
        for i, (name, shape) in enumerate({**config.shapes, "skill.s.model.norm.weight": (32,)}.items()):
            dtype = list(Dtype)[(i + 5 * turn) % len(Dtype)]
            dtype = dtype if len(shape) == 2 and shape[1] % 32 == 0 else Dtype.F16
            entries.append((name, dtype, shape))
            payloads.append(payload_of(dtype, rng.standard_normal(shape).astype(np.float32)))
        bits = bytes([255] * 4 * 2 + [3] * 2 + [3])
        meta = json.dumps(
            {"masks": [{"task_id": 0, "name": "a", "quality": None, "blob_off": 256, "blob_len": 11}]}
        )
        masks = (struct.pack("<II", 1, len(meta)) + meta.encode()).ljust(256, b"\0") + bits
        header = {
            "arch": dict(config.arch),
            "skills": [{"id": "s"}],
            "tokenizer_config": {"eos_token_ids": [1], "chat_template": "{{ messages }}"},
        }
        with CmfWriter(
            path, header, entries, _tokenizer_json(), {"masks": masks, "index": bytes(8)}
        ) as writer:
            for (name, _, _), payload in zip(entries, payloads, strict=True):
                writer.write(name, payload)
        data = bytearray(path.read_bytes())
        if turn:  # hashes of one seed are kept, those of the others do not stand before the parsers
            data[0x70:0x80] = bytes(16)
        seeds.append(bytes(data))
    return Target("CMF", seeds, 4096, _open_cmf)


def _open_cmf(path: Path) -> None:
    findings = verify(path).findings
    with CmfFile.open(path) as model:
        for name, entry in model.tensors.items():
            rows = entry.shape[0] if entry.shape else 1
            model.rows(name, 0, min(rows, _ROWS_READ) if entry.dtype == Dtype.BLR else rows)
    if findings:
        raise NvgpuError("; ".join(message for _, message in findings))


def _safetensors(path: Path) -> Target:
    seeds = []
    for dtype in (Dtype.F32, Dtype.BF16):
        values = codecs.encode(np.ones((3, 5), np.float32), dtype, "w"), codecs.encode(np.ones(2), dtype, "v")
        write_safetensors(path, dtype, {"w": (3, 5), "v": (2,)}, values)
        seeds.append(path.read_bytes())

    def read(path: Path) -> None:
        for tensor in open_safetensors(path).values():
            tensor.raw().sum()

    return Target("safetensors", seeds, 256, read)


def _tokenizer() -> Target:
    def read(path: Path) -> None:
        tokenizer = Tokenizer.from_json_bytes(path.read_bytes(), str(path))
        tokenizer.decode(tokenizer.encode("ab abba <e> ü\u0301"))
        tokenizer.vocab_map()

    return Target("tokenizer.json", [_tokenizer_json()], 1 << 20, read)


def _blr() -> Target:
    def read(path: Path) -> None:
        tensor = BlrTensor.parse(path.read_bytes(), str(path))
        tensor.dense(slice(0, _ROWS_READ))
        tensor.pack()

    return Target("BLR payload", [_blr_tensor(5, 16).pack(), _blr_tensor(40, 136).pack()], 16, read)


def _topk(path: Path) -> Target:
    path.unlink(missing_ok=True)
    TopkCache(path, _TOPK_KEY, _TOPK_SHAPE).wrote([0, 2])
    seed = path.read_bytes()

    def read(path: Path) -> None:
        cache = TopkCache(path, _TOPK_KEY, _TOPK_SHAPE)
        assert len(cache.missing) <= 3
        cache.targets.p.sum()

    return Target("top-k cache", [seed], 96, read)


def _loop() -> Any:
    """A Distillation whose device buffers keep nothing; `restore` is the real one."""
    loop = Distillation.__new__(Distillation)
    sink = SimpleNamespace(write=lambda values: None)
    params = SimpleNamespace(count=_STATE_COUNT, values=sink, m1=sink, m2=sink)
    loop.student = SimpleNamespace(net=SimpleNamespace(params=params), gscale=1.0)  # type: ignore[assignment]
    loop.windows = SimpleNamespace(stream=SimpleNamespace(state=1))  # type: ignore[assignment]
    loop.signs = None
    return loop


def _state() -> Target:
    """A state is several files: the seed holds them one after another, each with its length before it."""
    progression = {"done": 3, "skipped": 0, "evals": [{"step": 0, "heldout_kl": 1.5}]}
    facts = {
        "epoch": 0,
        "index": 3,
        "stream": 7,
        "gscale": 4096.0,
        "start_kl": 2.0,
        "best_kl": 1.5,
        "best_step": 3,
    }
    document = {"version": 1, "key": {"teacher": "a"}, "state": {**facts, "progression": progression}}
    files = {"state.json": json.dumps(document).encode()}
    for name in Distillation.ARRAYS:
        values = np.arange(4) if name == "order" else np.zeros(_STATE_COUNT, np.float32)
        data = io.BytesIO()
        np.save(data, values)
        files[f"{name}.npy"] = data.getvalue()
    names = list(files)
    seed = b"".join(struct.pack("<I", len(data)) + data for data in files.values())

    def read(path: Path) -> None:
        data = path.read_bytes()
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            step = Path(folder) / "step-00000003"
            step.mkdir()
            for name in names:
                length = int.from_bytes(data[:4], "little")
                (step / name).write_bytes(data[4 : 4 + length])
                data = data[4 + length :]
            StateFolder(Path(folder), {"teacher": "a"}).restore(_loop())

    return Target("training state", [seed], len(files["state.json"]), read)
