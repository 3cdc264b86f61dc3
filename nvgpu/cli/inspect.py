"""`nvgpu inspect`: what a CMF file holds."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from nvgpu.cli.common import command, json_option, print_json
from nvgpu.cli.console import print_table
from nvgpu.formats.blr import BlrTensor
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.masks import read_masks
from nvgpu.formats.skills import read_skills
from nvgpu.model.size import body_bpw, file_bpw

_LAYER = re.compile(r"(.*?)model\.layers\.(\d+)\.(.+)")
_SHOWN = 120  # characters of a header entry


@command("inspect")
@click.argument("model", type=Path)
@json_option
def inspect(model: Path, as_json: bool) -> None:
    """Tensors by layer and role, bits per weight, header, provenance, masks and skills of MODEL; reads no weights."""
    with CmfFile.open(model) as opened:
        report = _report(opened)
    if as_json:
        print_json(report)
        return
    columns = ["layer", "role", "dtype", "shape", "detail", "bits/weight", "of payload"]
    rows = [
        [t["layer"], t["role"], t["dtype"], _shape(t), t["detail"], f"{t['bpw']:.3f}", f"{t['share']:.1%}"]
        for t in report["tensors"]
    ]
    print_table(str(model), columns, rows)
    rows = [
        [name, str(v["tensors"]), str(v["weights"]), f"{v['bpw']:.3f}", f"{v['share']:.1%}"]
        for name, v in report["by_dtype"].items()
    ]
    print_table("by dtype", ["dtype", "tensors", "weights", "bits/weight", "of payload"], rows)
    print_table("summary", ["", ""], _summary(report))
    _print_tasks(report)
    for name in ("arch", "header", "provenance"):
        if report[name]:
            print_table(name, ["key", "value"], [[k, _short(v)] for k, v in report[name].items()])


def _shape(tensor: dict[str, Any]) -> str:
    return "x".join(str(n) for n in tensor["shape"])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _summary(report: dict[str, Any]) -> list[list[str]]:
    body = report["bpw_body"]
    return [
        ["files", ", ".join(f"{f['name']} ({f['bytes']} bytes)" for f in report["files"])],
        ["bytes that nothing refers to, padding included", str(report["unused_bytes"])],
        ["weights", str(report["weights"])],
        ["bits per weight, whole file", f"{report['bpw_file']:.3f}"],
        ["bits per weight, body linears", f"{body:.3f}" if body is not None else "not a Qwen3.5 model"],
        ["tokenizer", f"{report['tokenizer_bytes']} bytes" if report["tokenizer_bytes"] else "none"],
    ]


def _print_tasks(report: dict[str, Any]) -> None:
    if report["masks"]:
        rows = [
            [m["name"], f"{m['neurons']:.1%}", f"{m['heads']:.1%}", str(m["layers"]), _short(m["quality"])]
            for m in report["masks"]
        ]
        print_table("masks", ["task", "neurons", "heads", "layers", "quality"], rows)
    if report["skills"]:
        rows = [
            [s["id"], str(len(s["tensors"])), str(s["nbytes"]), _short(s["quality"])]
            for s in report["skills"]
        ]
        print_table("skills", ["id", "tensors", "bytes", "quality"], rows)


def _report(model: CmfFile) -> dict[str, Any]:
    payload = sum(entry.nbytes for entry in model.tensors.values()) or 1
    tensors = [_tensor(model, name, payload) for name in model.tensors]
    weights = sum(math.prod(entry.shape) for entry in model.tensors.values()) or 1
    known = ("arch", "provenance", "hf", "tokenizer_config", "skills", "section_hashes")
    return {
        "file": Path(model.path).name,
        "files": [{"name": part.path.name, "bytes": part.nbytes} for part in model.parts],
        "bytes": model.nbytes,
        "unused_bytes": sum(part.unused_bytes for part in model.parts),
        "weights": weights,
        "bpw_file": file_bpw(model),
        "bpw_body": body_bpw(model),
        "by_dtype": _by_dtype(model, payload),
        "tensors": tensors,
        "arch": dict(model.arch),
        "header": {k: v for k, v in model.header.items() if k not in known},
        "provenance": dict(model.header.get("provenance") or {}),
        "tokenizer_bytes": len(model.tokenizer_json or b""),
        "masks": [asdict(m) for m in read_masks(model.section("masks"), model.arch, str(model.path))],
        "skills": [asdict(s) for s in read_skills(model.header, model.tensors, str(model.path))],
    }


def _tensor(model: CmfFile, name: str, payload: int) -> dict[str, Any]:
    entry = model.tensors[name]
    match = _LAYER.fullmatch(name)
    return {
        "name": name,
        "layer": match[2] if match else "",
        "role": f"{match[1]}{match[3]}" if match else name,
        "dtype": entry.dtype.label,
        "shape": list(entry.shape),
        "detail": _detail(model, name),
        "bytes": entry.nbytes,
        "bpw": 8 * entry.nbytes / max(math.prod(entry.shape), 1),
        "share": entry.nbytes / payload,
    }


def _by_dtype(model: CmfFile, payload: int) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for entry in model.tensors.values():
        for i, amount in enumerate((1, math.prod(entry.shape), entry.nbytes)):
            groups[entry.dtype.label][i] += amount
    return {
        k: {"tensors": n, "weights": w, "bpw": 8 * b / max(w, 1), "share": b / payload}
        for k, (n, w, b) in sorted(groups.items())
    }


def _detail(model: CmfFile, name: str) -> str:
    if model.tensors[name].dtype != Dtype.BLR:
        return ""
    tensor = BlrTensor.parse(model.raw(name), f"{model.path}: tensor {name}")
    return f"rank {tensor.rank}" + (f" x {len(tensor.paths)} paths" if len(tensor.paths) > 1 else "")
