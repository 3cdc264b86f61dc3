"""The weights of a Hugging Face folder: one or many safetensors shards, checked against the config."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nvgpu.errors import FormatError, InputError
from nvgpu.formats.files import read_json_object
from nvgpu.formats.hf_config import EMBEDDINGS, HEAD, ModelConfig
from nvgpu.formats.safetensors_file import FLOAT_NAMES, StoredTensor, open_safetensors

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
_NESTED, _CANONICAL = "model.language_model.", "model."
_LEFT_OUT = {
    "vision": ("model.visual.", "visual."),
    "multi-token prediction": ("mtp.", "model.mtp."),
}


def open_checkpoint(
    folder: Path, config: ModelConfig
) -> tuple[dict[str, StoredTensor], dict[str, list[str]]]:
    """(the model's tensors by canonical name in file order, names left out by kind).

    Raises:
        FormatError: a malformed shard, or missing, unexpected or misshaped tensors; names file and tensor.
        InputError: no weights, or a missing shard.
    """
    found, left_out = _sort(_open_shards(folder), folder)
    _check_head(found, left_out, config)
    missing = [name for name in config.shapes if name not in found]
    if missing:
        raise FormatError(f"{folder}: {_some('tensor', missing)} missing")
    unexpected = [name for name in found if name not in config.shapes]
    if unexpected:
        raise FormatError(
            f"{found[unexpected[0]].path}: {_some('tensor', unexpected)} not part of this architecture"
        )
    for name, shape in config.shapes.items():
        _check_tensor(name, found[name], shape)
    return {name: found[name] for name in config.shapes}, left_out


def _check_tensor(name: str, tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise FormatError(
            f"{tensor.path}: tensor {name} has shape {list(tensor.shape)}, "
            f"expected {list(shape)} by config.json"
        )
    if tensor.dtype not in FLOAT_NAMES:
        raise FormatError(
            f"{tensor.path}: tensor {name} has dtype {tensor.dtype}, expected one of {', '.join(FLOAT_NAMES)}"
        )


def _sort(
    stored: Mapping[str, StoredTensor], folder: Path
) -> tuple[dict[str, StoredTensor], dict[str, list[str]]]:
    """Canonical names of the text model, and what is no part of it."""
    found: dict[str, StoredTensor] = {}
    left_out: dict[str, list[str]] = {}
    for name, tensor in stored.items():
        kind = next((k for k, prefixes in _LEFT_OUT.items() if name.startswith(prefixes)), None)
        if kind is not None:
            left_out.setdefault(kind, []).append(name)
            continue
        canonical = _CANONICAL + name.removeprefix(_NESTED) if name.startswith(_NESTED) else name
        if canonical in found:
            raise FormatError(f"{folder}: tensor {canonical} stands twice, once as {name}")
        found[canonical] = tensor
    return found, left_out


def _check_head(found: dict[str, StoredTensor], left_out: dict[str, list[str]], config: ModelConfig) -> None:
    """A tied head that was stored all the same must equal the embeddings; it is left out."""
    if not config.tied or HEAD not in found or EMBEDDINGS not in found:
        return
    head, embeddings = found.pop(HEAD), found[EMBEDDINGS]
    if head.dtype != embeddings.dtype or not np.array_equal(head.raw(), embeddings.raw()):
        raise FormatError(
            f"{head.path}: tensor {HEAD} differs from {EMBEDDINGS}, though tie_word_embeddings is true"
        )
    left_out["tied head"] = [HEAD]


def _open_shards(folder: Path) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for path in _shard_paths(folder):
        for name, tensor in open_safetensors(path).items():
            if name in tensors:
                raise FormatError(f"{path}: tensor {name} stands in {tensors[name].path.name} too")
            tensors[name] = tensor
    return tensors


def _shard_paths(folder: Path) -> list[Path]:
    if (folder / _SINGLE).exists():
        return [folder / _SINGLE]
    if (folder / _INDEX).exists():
        return _indexed(folder)
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise InputError(f"{folder}: no {_SINGLE}, no {_INDEX} and no other .safetensors file")
    for path in paths:
        _check_siblings(path)
    return paths


def _indexed(folder: Path) -> list[Path]:
    index = folder / _INDEX
    weights = read_json_object(index).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise FormatError(f"{index}: weight_map is missing or empty")
    for name, file in weights.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise FormatError(
                f"{index}: tensor {name} is in {file!r}, expected the name of a .safetensors file"
            )
    paths = [folder / file for file in sorted(set(weights.values()))]
    for path in paths:
        if not os.path.exists(path):  # a name too long for the system is missing too
            raise InputError(f"{path}: shard is missing, {_INDEX} names it")
    return paths


def _check_siblings(path: Path) -> None:
    """Without an index the file names say how many shards there are."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return
    base, _, count = match.groups()
    for i in range(1, min(int(count), 10_000) + 1):
        sibling = path.with_name(f"{base}-{i:05}-of-{count}.safetensors")
        if not sibling.exists():
            raise InputError(f"{sibling}: shard is missing")


def _some(what: str, names: list[str]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{what} {names[0]}{more} is"
