"""Hugging Face folders: import to one CMF file, export of dense weights that `transformers` loads."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu import __version__
from nvgpu.errors import FormatError, InputError
from nvgpu.formats import codecs
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.cmf_writer import model_writer
from nvgpu.formats.codecs import Dtype, dtype_by_name
from nvgpu.formats.files import (
    Bytes,
    PathLike,
    atomic_folder,
    check_target,
    output_errors,
    read_file,
    read_json_object,
)
from nvgpu.formats.hf_checkpoint import open_checkpoint
from nvgpu.formats.hf_config import (
    EMBEDDINGS,
    SMALL_LINEARS,
    TEXT_ARCHITECTURE,
    TEXT_MODEL_TYPE,
    ModelConfig,
    read_config,
)
from nvgpu.formats.safetensors_file import FLOAT_NAMES, StoredTensor, write_safetensors
from nvgpu.formats.tokenizer import Tokenizer
from nvgpu.progress import Progress

Array = np.ndarray[Any, Any]

SHARD_BYTES = 5_000_000_000
_BLOCK = 1 << 22  # values converted at once
_TORCH_NAMES = {Dtype.F32: "float32", Dtype.F16: "float16", Dtype.BF16: "bfloat16"}
_NAMES_SHOWN = 4
_READ = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
)


@dataclass
class ImportReport:
    """What an import wrote.

    `left_out`: names by kind. `fell_back`: matrices that the chosen type cannot hold. `rounding`: the largest
    relative error of a 1-D tensor in f16, and its name.
    """

    outputs: list[Path]
    tensors: int
    dtypes: dict[str, int]
    left_out: dict[str, list[str]]
    fell_back: list[str]
    nbytes: int = 0
    rounding: tuple[float, str] = field(default=(0.0, ""))

    def lines(self) -> list[str]:
        """The report for a reader."""
        counts = ", ".join(f"{n} {dtype}" for dtype, n in self.dtypes.items())
        more = f" and {len(self.outputs) - 1} more shards" if len(self.outputs) > 1 else ""
        lines = [f"wrote {self.outputs[0]}{more}: {self.tensors} tensors ({counts}), {self.nbytes} bytes"]
        listed = {f"left out, {kind}": names for kind, names in self.left_out.items()}
        if self.fell_back:
            listed[f"stored as {codecs.FALLBACK.label}, since their rows are no whole groups"] = (
                self.fell_back
            )
        for what, names in listed.items():
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            lines.append(f"{what}: {', '.join(names[:_NAMES_SHOWN])}{more}")
        error, name = self.rounding
        if error:
            lines.append(f"largest relative rounding of a 1-D tensor to f16: {error:.2g} ({name})")
        return lines


def import_hf(
    folder: PathLike,
    output: PathLike,
    *,
    dtype: str | None = None,
    shard_bytes: int | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Turn a Hugging Face folder of the Qwen3.5 family into a CMF file, in one pass over the weights.

    `dtype`, a name that `dtype_by_name` knows, is the storage of matrices; None keeps the checkpoint's. Matrices that
    it cannot hold become q8_2f. 1-D tensors are f16, or f32 where the matrices are f32. in_proj_a, in_proj_b and
    conv1d are never quantised. With `shard_bytes` the payloads of a file stay within it, in as many files as that takes.

    Raises:
        InputError, FormatError: something about the folder; names the file and the tensor.
        OutputError: `output` cannot be written.
    """
    folder = Path(folder)
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: {'not a folder' if os.path.exists(folder) else 'no such folder'}")
    chosen = dtype_by_name(dtype) if dtype is not None else None
    source = _Source(folder)
    inputs = [*map(folder.joinpath, _READ), *{t.path for t in source.tensors.values()}]
    entries = [
        (name, storage_dtype(name, t, chosen, source.dtype), t.shape) for name, t in source.tensors.items()
    ]
    counts: dict[str, int] = {}
    for _, kind, _ in entries:
        counts[kind.label] = counts.get(kind.label, 0) + 1
    fell_back = [name for name, kind, _ in entries if kind == codecs.FALLBACK != chosen]
    report = ImportReport([Path(output)], len(entries), counts, source.left_out, fell_back)
    header = source.header(source.dtype if chosen is None else chosen)
    if progress is not None:
        progress.start("convert", len(entries), "tensors")
    writer = model_writer(output, header, entries, source.tokenizer_json, shard_bytes=shard_bytes)
    for path in writer.paths:
        check_target(path, inputs)
    with writer:
        for name, kind, shape in entries:
            tensor = source.tensors[name]
            writer.write(name, _converted(name, tensor, kind))
            if len(shape) == 1 and kind == Dtype.F16:
                report.rounding = max(report.rounding, (_f16_error(tensor), name))
            if progress is not None:
                progress.advance()
    report.outputs = writer.paths
    report.nbytes = sum(path.stat().st_size for path in writer.paths)
    return report


def storage_dtype(name: str, tensor: StoredTensor, chosen: Dtype | None, checkpoint: Dtype) -> Dtype:
    """How a tensor is stored: `chosen` is --dtype, `checkpoint` the type of the checkpoint's embeddings."""
    if len(tensor.shape) == 1:
        return Dtype.F32 if (checkpoint if chosen is None else chosen) == Dtype.F32 else Dtype.F16
    wanted = chosen if chosen is not None else FLOAT_NAMES[tensor.dtype]
    small = name.endswith(SMALL_LINEARS) or len(tensor.shape) != 2 or math.prod(tensor.shape) < 32
    return Dtype.F16 if small and wanted in codecs.QUANTISED else codecs.fitting(wanted, tensor.shape)


class _Source:
    """A folder, read and checked; the tensors' bytes stay on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json_object(folder / "config.json")
        self.model = read_config(self.config, str(folder / "config.json"))
        self.generation = self._optional("generation_config.json")
        self.tokenizer_config = self._optional("tokenizer_config.json")
        self.tokenizer_json = read_file(folder / "tokenizer.json")
        self.bundle = self._chat_bundle()
        self.tensors, self.left_out = open_checkpoint(folder, self.model)
        self.dtype = FLOAT_NAMES[self.tensors[EMBEDDINGS].dtype]

    def header(self, dtype: Dtype) -> dict[str, Any]:
        hf = {
            "config": self.config,
            "generation_config": self.generation,
            "tokenizer_config": self.tokenizer_config,
        }
        return {
            "format": "cmf",
            "version": 2,
            "arch": dict(self.model.arch),
            "quant_type": dtype.name,
            "tokenizer_config": self.bundle,
            "hf": {key: value for key, value in hf.items() if value is not None},
            "provenance": {
                "tool": "nvgpu",
                "version": __version__,
                "source_model": self.folder.resolve().name,
            },
        }

    def _optional(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        return read_json_object(path) if path.exists() else None

    def _chat_bundle(self) -> dict[str, Any]:
        """Template and stop ids as CMF's tokenizer_config; the tokenizer is checked on the way."""
        where = str(self.folder / "tokenizer.json")
        template = self._template()
        vocab = Tokenizer.from_json_bytes(self.tokenizer_json, where, {"chat_template": template}).vocab_map()
        vocab_size = self.model.arch["vocab_size"]
        beyond = max(vocab.items(), key=lambda item: item[1], default=("", -1))
        if beyond[1] >= vocab_size:
            raise FormatError(f"{where}: token {beyond[0]!r} has id {beyond[1]}, vocab_size is {vocab_size}")
        bundle = {
            "chat_template": template,
            "eos_token_ids": self._eos_ids(vocab),
            "bos_token_id": next(iter(self._ids("bos_token_id")), None),
            "pad_token_id": next(iter(self._ids("pad_token_id")), None),
        }
        return {key: value for key, value in bundle.items() if key != "chat_template" or value is not None}

    def _template(self) -> str | None:
        """`chat_template.jinja` wins over tokenizer_config.json, whose list form has one named default."""
        path = self.folder / "chat_template.jinja"
        if path.exists():
            try:
                return read_file(path).decode("utf-8")
            except UnicodeDecodeError as e:
                raise FormatError(f"{path}: not UTF-8 at byte {e.start}") from e
        template = (self.tokenizer_config or {}).get("chat_template")
        if isinstance(template, list):
            defaults = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
            template = defaults[-1].get("template") if defaults else None
        if template is not None and not isinstance(template, str):
            raise FormatError(f"{self.folder / 'tokenizer_config.json'}: chat_template is no text")
        return template

    def _ids(self, key: str) -> list[int]:
        """Ids under a key, from generation config, text config and config; one value or a list each."""
        found: list[int] = []
        for source in (self.generation or {}, self.model.text, self.config):
            value = source.get(key)
            for i in value if isinstance(value, list) else [value]:
                if type(i) is int and i not in found:
                    found.append(i)
        return found

    def _eos_ids(self, vocab: Mapping[str, int]) -> list[int]:
        token = (self.tokenizer_config or {}).get("eos_token")
        content = token.get("content") if isinstance(token, dict) else token
        ids = self._ids("eos_token_id")
        if isinstance(content, str) and content in vocab and vocab[content] not in ids:
            ids.append(vocab[content])
        return ids


def _converted(name: str, tensor: StoredTensor, target: Dtype) -> Iterator[Bytes]:
    """The payload in pieces; a quantised matrix is converted as a whole, since its scales stand behind it."""
    source, raw = FLOAT_NAMES[tensor.dtype], tensor.raw()
    what = f"{name} ({tensor.path})"
    if target in codecs.QUANTISED:
        yield codecs.encode(codecs.decode(raw, source, tensor.shape, what), target, what)
        return
    step = _BLOCK * codecs.ITEM_BYTES[source]
    for begin in range(0, len(raw), step):
        part = raw[begin : begin + step]
        values = codecs.decode(part, source, (len(part) // codecs.ITEM_BYTES[source],), what)
        yield codecs.encode(values, target, what)


def _f16_error(tensor: StoredTensor) -> float:
    """Largest relative error of the values' rounding to f16."""
    values = codecs.decode(tensor.raw(), FLOAT_NAMES[tensor.dtype], tensor.shape, "").astype(np.float64)
    values = values[values != 0]
    if not len(values):
        return 0.0
    return float(np.abs(values.astype(np.float16) / values - 1.0).max())


def export_hf(
    model: CmfFile, folder: PathLike, *, dtype: str = "bf16", progress: Progress | None = None
) -> None:
    """Write a model as a Hugging Face folder: dense weights in bf16, f16 or f32, however they were stored.

    The folder is complete or not there. It is a text model (`Qwen3_5ForCausalLM`) whatever the source was.

    Raises:
        FormatError: a file without the source's config, or whose tensors are not those of the config.
        InputError: a value that `dtype` cannot hold. OutputError: `folder` is not empty or cannot be written.
    """
    target = dtype_by_name(dtype)
    if target not in _TORCH_NAMES:
        raise InputError(f"dtype {dtype!r}: expected f32, f16 or bf16")
    files = model.header.get("hf")
    if not isinstance(files, dict) or not isinstance(files.get("config"), dict):
        raise FormatError(f"{model.path}: header has no hf.config, from which config.json is rebuilt")
    config = read_config(files["config"], f"{model.path}: header hf.config")
    _check_tensors(model, config)
    template = _new_template(model, files)
    folder = Path(folder)
    if progress is not None:
        progress.start("export", len(config.shapes), "tensors")
    with atomic_folder(folder) as temporary, output_errors(folder):
        _write_weights(model, config, target, temporary, folder, progress)
        _write_json(temporary / "config.json", _text_config(files["config"], config, target))
        for name in ("generation_config", "tokenizer_config"):
            if isinstance(files.get(name), dict):
                _write_json(temporary / f"{name}.json", files[name])
        if model.tokenizer_json is not None:
            (temporary / "tokenizer.json").write_bytes(model.tokenizer_json)
        if template is not None:
            (temporary / "chat_template.jinja").write_bytes(template)


def _new_template(model: CmfFile, files: Mapping[str, Any]) -> bytes | None:
    """The chat template where the source's tokenizer_config.json lacks it; checks the types of the three."""
    for name, value in (
        ("tokenizer_config", model.header.get("tokenizer_config")),
        ("hf.tokenizer_config", files.get("tokenizer_config")),
        ("hf.generation_config", files.get("generation_config")),
    ):
        if value is not None and not isinstance(value, dict):
            raise FormatError(f"{model.path}: header: {name} is {type(value).__name__}, expected an object")
    template = (model.header.get("tokenizer_config") or {}).get("chat_template")
    if template is None or template == (files.get("tokenizer_config") or {}).get("chat_template"):
        return None
    if not isinstance(template, str):
        raise FormatError(
            f"{model.path}: header: chat_template is {type(template).__name__}, expected a string"
        )
    try:
        return template.encode("utf-8")
    except UnicodeEncodeError as e:
        raise FormatError(f"{model.path}: header: chat_template holds half of a surrogate pair") from e


def _check_tensors(model: CmfFile, config: ModelConfig) -> None:
    for name, shape in config.shapes.items():
        entry = model.entry(name)
        if entry.shape != shape:
            raise FormatError(
                f"{model.path}: tensor {name} has shape {list(entry.shape)}, "
                f"expected {list(shape)} by header hf.config"
            )
    for name in model.tensors:
        if name not in config.shapes:
            raise FormatError(f"{model.path}: tensor {name} has no place in a {TEXT_ARCHITECTURE}")


def _text_config(source: Mapping[str, Any], config: ModelConfig, target: Dtype) -> dict[str, Any]:
    """The text model's config.json: its own keys, then those of the whole that it lacks."""
    text = dict(config.text)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version"):
        if key not in text and key in source:
            text[key] = source[key]
    dtype_keys = [key for key in ("dtype", "torch_dtype") if key in text or key in source] or ["dtype"]
    return {
        **text,
        "architectures": [TEXT_ARCHITECTURE],
        "model_type": TEXT_MODEL_TYPE,
        "tie_word_embeddings": config.tied,
        **dict.fromkeys(dtype_keys, _TORCH_NAMES[target]),
    }


def _write_weights(
    model: CmfFile,
    config: ModelConfig,
    target: Dtype,
    folder: Path,
    shown: Path,
    progress: Progress | None,
) -> None:
    """The shards and their index into `folder`, which errors call `shown`."""
    shards = _shards(config.shapes, codecs.ITEM_BYTES[target])
    names: dict[str, str] = {}
    for i, shapes in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{i:05}-of-{len(shards):05}.safetensors"
        write_safetensors(
            folder / file, target, shapes, _dense(model, shapes, target, progress), shown / file
        )
        names.update(dict.fromkeys(shapes, file))
    if len(shards) > 1:
        total = sum(math.prod(shape) for shape in config.shapes.values()) * codecs.ITEM_BYTES[target]
        _write_json(
            folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": names}
        )


def _shards(shapes: Mapping[str, tuple[int, ...]], item: int) -> list[dict[str, tuple[int, ...]]]:
    """Tensors in order, a new shard where SHARD_BYTES would be passed."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, shape in shapes.items():
        nbytes = math.prod(shape) * item
        if shards[-1] and size + nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = shape
        size += nbytes
    return shards


def _dense(
    model: CmfFile, names: Mapping[str, Any], target: Dtype, progress: Progress | None
) -> Iterator[Bytes]:
    for name in names:
        model.check_finite(name)
        stored = model.entry(name).dtype
        what = f"{name} ({model.path})"
        yield model.raw(name) if stored == target else codecs.encode(model.array(name), target, what)
        if progress is not None:
            progress.advance()


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="ascii")
