"""CMF version 2: a model's weights, architecture, tokenizer and chat template in one file or several (docs/cmf.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from nvgpu.errors import FormatError
from nvgpu.formats import codecs
from nvgpu.formats.cmf_writer import CmfWriter
from nvgpu.formats.envelope import Report, TensorEntry, refuse
from nvgpu.formats.files import PathLike
from nvgpu.formats.part import Part, open_parts

Array = np.ndarray[Any, Any]

__all__ = ["CmfFile", "CmfWriter", "TensorEntry"]


class CmfFile:
    """An open model, memory-mapped; every structure is checked on opening, payload hashes are not.

    `tensors` maps names to `TensorEntry` in directory order, shard by shard; `header` is that of the first shard,
    without its shard block. `parts` are the files. Views from `raw` stay valid after `close`.
    """

    def __init__(self, path: Path, parts: Sequence[Part], report: Report = refuse) -> None:
        self.path = path
        self.parts = tuple(parts)
        self.header = {k: v for k, v in parts[0].header.items() if k != "shard"}
        self.tensors: dict[str, TensorEntry] = {}
        self._home: dict[str, Part] = {}
        for part in parts:
            for name, entry in part.tensors.items():
                if name in self.tensors:
                    report(
                        FormatError(f"{part.path}: tensor {name} stands in {self._home[name].path.name} too")
                    )
                    continue
                self.tensors[name] = entry
                self._home[name] = part

    @classmethod
    def open(cls, path: PathLike, report: Report = refuse) -> Self:
        """Open and check a file; any shard opens all of its set. What can be read over goes to `report`.

        Raises:
            FormatError: not a regular file, not a sound CMF file, or a set of shards that is not complete and of one
                model. InputError: nothing readable at `path`.
        """
        parts = open_parts(Path(path), report)
        try:
            return cls(Path(path), parts, report)
        except BaseException:
            for part in parts:
                part.close()
            raise

    def close(self) -> None:
        """Release the mappings, at the latest when the last view of them is gone."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def paths(self) -> list[Path]:
        """The files, in the order of the shards."""
        return [part.path for part in self.parts]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(part.nbytes for part in self.parts)

    @property
    def arch(self) -> dict[str, Any]:
        """The header's architecture object."""
        arch: dict[str, Any] = self.header["arch"]
        return arch

    @property
    def tokenizer_json(self) -> bytes | None:
        """Bytes of the tokenizer (`tokenizer.json`), None where there is none. Checks its hash."""
        return self.section("vocab") or None

    def section(self, name: str) -> bytes:
        """Bytes of masks, vocab or index, empty where there are none; raises FormatError where their hash differs."""
        self.parts[0].check_section(name)
        return self.parts[0].section(name)

    def entry(self, name: str) -> TensorEntry:
        """The record of a tensor; raises FormatError where the file has none of that name."""
        if name not in self.tensors:
            raise FormatError(f"{self.path}: tensor {name} is missing")
        return self.tensors[name]

    def raw(self, name: str) -> Array:
        """The payload as a read-only u8 view of the mapping."""
        return self._home[self.entry(name).name].raw(self.tensors[name])

    def array(self, name: str) -> Array:
        """The decoded tensor, a new float32 array of its shape."""
        entry = self.entry(name)
        return codecs.decode(self.raw(name), entry.dtype, entry.shape, f"{self.path}: tensor {name}")

    def rows(self, name: str, begin: int, end: int) -> Array:
        """Rows of the decoded tensor, float32 `[end - begin, columns]`; the others are not touched."""
        entry = self.entry(name)
        where = f"{self.path}: tensor {name}"
        return codecs.decode_rows(self.raw(name), entry.dtype, entry.shape, begin, end, where)

    def check_finite(self, name: str) -> None:
        """Raise FormatError where a tensor holds NaN or an infinity."""
        entry = self.entry(name)
        if not codecs.is_finite(self.raw(name), entry.dtype, entry.shape):
            raise FormatError(f"{self.path}: tensor {name} holds non-finite values")

    def content_key(self) -> str:
        """SHA-256 (hex) of header JSON and directory, which holds every payload's hash64; of all shards in order.

        It tells files apart that differ by work, not by malice: hash64 is blind to the order of 8-byte words.
        """
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part.header_bytes + part.directory_bytes)
        return digest.hexdigest()
