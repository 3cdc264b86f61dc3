#!/usr/bin/env python3
"""Files of nvgpu read by the public CMF project's Python reader, and files of its converter read by nvgpu.

python tools/check_interop.py CHECKOUT

CHECKOUT is a working copy of infosave2007/cmf; nothing of it is part of this repository. Its reader decodes dtype ids 0 to 4
and 8 to 12: those tensors must be equal bit for bit. Of the other ids directory, hashes and raw bytes must be equal.
Prints a table; exit code 1 with any difference.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

READER, CONVERTER, MODEL = (
    "python/cmf_reader.py",
    "converter/convert_dtgma_to_cmf.py",
    "tests/make_tiny_model.py",
)
QUANTS = ("F32", "F16", "Q8_ROW", "Q8_2F", "Q4_BLOCK", "VBIT")
DECODED_THERE = (0, 1, 2, 3, 4, 8, 9, 10, 11, 12)


@dataclass
class Row:
    """One file: what was compared, and how it differs."""

    file: str
    tensors: int = 0
    decoded: int = 0
    problems: list[str] = field(default_factory=list)

    def check(self, good: bool, what: str) -> None:
        if not good:
            self.problems.append(what)


def load_reader(checkout: Path) -> Any:
    """The public reader as a module."""
    spec = importlib.util.spec_from_file_location("cmf_reader", checkout / READER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def write_ours(folder: Path) -> list[tuple[str, Path]]:
    """A file of every type, and one in shards with tokenizer and masks."""
    import numpy as np
    from bench.fuzz_targets import payload_of

    from nvgpu.formats.cmf_writer import CmfWriter, model_writer
    from nvgpu.formats.codecs import Dtype

    rng = np.random.default_rng(11)
    values = {f"model.w{i}": rng.standard_normal((24, 96)).astype(np.float32) * 10.0**i for i in range(-2, 3)}
    written = []
    for dtype in Dtype:
        entries = [(name, dtype, w.shape) for name, w in values.items()]
        path = folder / f"{dtype.label}.cmf"
        with CmfWriter(path, {"arch": {}}, entries, b"{}") as writer:
            for name, w in values.items():
                writer.write(name, payload_of(dtype, w))
        written.append((f"nvgpu {dtype.label}", path))
    entries = [
        (f"{d.label}.{name}", d, w.shape) for d in (Dtype.Q4TP, Dtype.Q8_2F) for name, w in values.items()
    ]
    meta = json.dumps({"masks": []}).encode()
    sections = {"masks": struct.pack("<II", 0, len(meta)) + meta}
    with model_writer(folder / "set.cmf", {"arch": {}}, entries, b"{}", sections, shard_bytes=6000) as writer:
        for name, dtype, _ in entries:
            writer.write(name, payload_of(dtype, values[name.partition(".")[2]]))
    written.append((f"nvgpu, {len(writer.paths)} shards, masks", writer.paths[1]))
    return written


def write_theirs(checkout: Path, folder: Path) -> list[tuple[str, Path]]:
    """Files of the public converter: every type it writes, with masks, and in shards."""
    model = folder / "tiny"
    run([checkout / MODEL, "--out", model])
    written = []
    for quant in QUANTS:
        path = folder / f"theirs-{quant}.cmf"
        run(
            [
                checkout / CONVERTER,
                "--model",
                model,
                "--masks",
                model / "masks",
                "--quant",
                quant,
                "--output",
                path,
            ]
        )
        written.append((f"public {quant}, masks", path))
    path = folder / "theirs.cmf"
    run(
        [
            checkout / CONVERTER,
            "--model",
            model,
            "--quant",
            "Q8_2F",
            "--output",
            path,
            "--shard-max-gb",
            "0.00005",
        ]
    )
    shards = sorted(folder.glob("theirs-0*.cmf"))
    written.append((f"public Q8_2F, {len(shards)} shards", shards[-1]))
    return written


def run(words: list[Any]) -> None:
    """Run a script of the checkout; its output is shown where it fails."""
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words[0]} failed:\n{done.stdout}{done.stderr}")


def compare(label: str, path: Path, reader: Any) -> Row:
    """Both readers on one file: directory, raw bytes, hashes, sections and, where both decode, values."""
    import numpy as np

    from nvgpu.formats.cmf import CmfFile
    from nvgpu.formats.hash64 import hash64
    from nvgpu.formats.masks import read_masks

    row = Row(label)
    theirs = reader.CmfReader(path)
    row.check(theirs.verify() == [], f"public verify: {theirs.verify()[:2]}")
    with CmfFile.open(path) as ours:
        row.check(list(ours.tensors) == list(theirs.tensors), "names differ")
        row.check((ours.tokenizer_json or b"") == theirs.vocab, "tokenizers differ")
        row.check(ours.arch == theirs.arch, "arch differs")
        known = (theirs.masks_meta or {}).get("masks", [])
        found = read_masks(ours.section("masks"), ours.arch, str(path)) if known else []
        row.check([m.name for m in found] == [m["name"] for m in known], "masks differ")
        for name, entry in ours.tensors.items():
            record, _ = theirs.tensors[name]
            row.tensors += 1
            row.check(
                (entry.shape, entry.nbytes, entry.hash)
                == (record["shape"], record["nbytes"], record["hash"]),
                f"{name}: record",
            )
            row.check(ours.raw(name).tobytes() == theirs.tensor_bytes(name), f"{name}: raw bytes")
            row.check(hash64(ours.raw(name)) == reader.hash64(theirs.tensor_bytes(name)), f"{name}: hash64")
            if entry.dtype in DECODED_THERE:
                row.decoded += 1
                row.check(record["dtype"] == entry.dtype.label, f"{name}: dtype {record['dtype']}")
                values = np.asarray(theirs.tensor(name), np.float32)
                row.check(values.tobytes() == ours.array(name).tobytes(), f"{name}: values")
    theirs.close()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="working copy of infosave2007/cmf")
    options = parser.parse_args()
    if not (options.checkout / READER).is_file():
        parser.error(f"{options.checkout}: no {READER} there")
    reader = load_reader(options.checkout)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = [*write_ours(folder), *write_theirs(options.checkout, folder)]
        rows = [compare(label, path, reader) for label, path in files]
    print("| file | tensors | values equal | outcome |")
    print("| --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row.file} | {row.tensors} | {row.decoded} | {'; '.join(row.problems[:3]) or 'equal'} |")
    return 1 if any(row.problems for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
