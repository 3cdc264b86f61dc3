"""`nvgpu inspect`: what a CMF file holds."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import click

from nvgpu.cli.common import command, json_option, print_json
from nvgpu.cli.console import print_table
from nvgpu.formats.blr import BlrTensor
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import Dtype
from nvgpu.model.geometry import Geometry
from nvgpu.model.net import body_linear_names


@command("inspect")
@click.argument("model", type=Path)
@json_option
def inspect(model: Path, as_json: bool) -> None:
    """Tensors, sizes, bits per weight, architecture and provenance of MODEL; reads no weights."""
    with CmfFile.open(model) as opened:
        report = _report(opened)
    if as_json:
        print_json(report)
        return
    rows = [
        [
            t["name"],
            t["dtype"],
            "x".join(str(n) for n in t["shape"]),
            t["detail"],
            f"{t['bpw']:.3f}",
            f"{t['share']:.1%}",
        ]
        for t in report["tensors"]
    ]
    print_table(str(model), ["tensor", "dtype", "shape", "detail", "bits/weight", "of payload"], rows)
    rows = [
        [name, str(v["tensors"]), str(v["weights"]), f"{v['bpw']:.3f}"]
        for name, v in report["by_dtype"].items()
    ]
    print_table("by dtype", ["dtype", "tensors", "weights", "bits/weight"], rows)
    summary = [
        ["file", f"{report['bytes']} bytes"],
        ["weights", str(report["weights"])],
        ["bits per weight, whole file", f"{report['bpw_file']:.3f}"],
        ["bits per weight, body linears", f"{report['bpw_body']:.3f}"],
        ["tokenizer", f"{report['tokenizer_bytes']} bytes" if report["tokenizer_bytes"] else "none"],
    ]
    print_table("summary", ["", ""], summary)
    print_table("arch", ["key", "value"], [[k, str(v)] for k, v in report["arch"].items()])
    if report["provenance"]:
        print_table("provenance", ["key", "value"], [[k, str(v)] for k, v in report["provenance"].items()])


def _report(model: CmfFile) -> dict[str, Any]:
    payload = sum(entry.nbytes for entry in model.tensors.values()) or 1
    tensors: list[dict[str, Any]] = []
    by_dtype: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for name, entry in model.tensors.items():
        weights = math.prod(entry.shape)
        group = by_dtype[entry.dtype.name.lower()]
        for i, amount in enumerate((1, weights, entry.nbytes)):
            group[i] += amount
        tensors.append(
            {
                "name": name,
                "dtype": entry.dtype.name.lower(),
                "shape": list(entry.shape),
                "detail": _detail(model, name),
                "bytes": entry.nbytes,
                "bpw": 8 * entry.nbytes / max(weights, 1),
                "share": entry.nbytes / payload,
            }
        )
    weights = sum(g[1] for g in by_dtype.values()) or 1
    size = Path(model.path).stat().st_size
    return {
        "file": Path(model.path).name,
        "bytes": size,
        "weights": weights,
        "bpw_file": 8 * size / weights,
        "bpw_body": _body_bpw(model),
        "by_dtype": {
            k: {"tensors": n, "weights": w, "bpw": 8 * b / max(w, 1)}
            for k, (n, w, b) in sorted(by_dtype.items())
        },
        "tensors": tensors,
        "arch": dict(model.arch),
        "provenance": dict(model.header.get("provenance") or {}),
        "tokenizer_bytes": len(model.tokenizer_json or b""),
    }


def _detail(model: CmfFile, name: str) -> str:
    if model.tensors[name].dtype != Dtype.BLR:
        return ""
    tensor = BlrTensor.parse(model.raw(name), f"{model.path}: tensor {name}")
    return f"rank {tensor.rank}" + (f" x {len(tensor.paths)} paths" if len(tensor.paths) > 1 else "")


def _body_bpw(model: CmfFile) -> float:
    """Payload bits of the body linears over their weights (a BLR header's 16 bytes are not counted, as in its bpw)."""
    bits = weights = 0
    for name in body_linear_names(Geometry.of(model)):
        entry = model.tensors[name]
        bits += 8 * (entry.nbytes - (16 if entry.dtype == Dtype.BLR else 0))
        weights += math.prod(entry.shape)
    return bits / weights
