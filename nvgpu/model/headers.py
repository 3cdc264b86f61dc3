"""A model by its headers alone: names, types, shapes and ranks, with zeros in the place of every value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from nvgpu.formats.blr import HEADER, BlrPath, BlrTensor, check_payload, payload_bytes
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import Dtype

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Entry:
    """A tensor's record; `rank` and `paths` of a binary low-rank one."""

    dtype: Dtype
    shape: tuple[int, ...]
    nbytes: int
    rank: int = 0
    paths: int = 0

    @property
    def bits(self) -> int:
        """Bits of a binary low-rank tensor's signs and scales."""
        return 8 * (self.nbytes - HEADER.size)


@dataclass(frozen=True)
class Headers:
    """What a net needs of a model file, without values."""

    path: Path
    arch: Mapping[str, Any]
    tensors: Mapping[str, Entry]

    @classmethod
    def of(cls, model: CmfFile) -> Self:
        """Of a file; of binary low-rank payloads the first 16 bytes are read. Raises FormatError where one is malformed."""
        return cls(model.path, model.arch, {name: _entry(model, name) for name in model.tensors})

    def compressed(self, ranks: Mapping[str, int], paths: int) -> Self:
        """With binary low-rank tensors of these `ranks`, as `nvgpu compress` would write them; the rest is f16."""
        tensors = dict(self.tensors)
        for name, entry in self.tensors.items():
            if name in ranks:
                m, n = entry.shape
                nbytes = payload_bytes(m, n, ranks[name], paths)
                tensors[name] = Entry(Dtype.BLR, entry.shape, nbytes, ranks[name], paths)
            else:
                tensors[name] = Entry(Dtype.F16, entry.shape, 2 * int(np.prod(entry.shape)))
        return type(self)(self.path, self.arch, tensors)

    def entry(self, name: str) -> Entry:
        return self.tensors[name]

    def array(self, name: str) -> Array:
        """Zeros that take no memory."""
        return zeros("f4", self.tensors[name].shape)

    def blr(self, name: str) -> BlrTensor:
        """A binary low-rank tensor of zeros."""
        entry = self.tensors[name]
        (m, n), r = entry.shape, entry.rank
        path = BlrPath(
            h=zeros("f2", (m,)),
            l=zeros("f2", (r,)),
            g=zeros("f2", (n,)),
            u=zeros("u1", (m, r // 8)),
            v=zeros("u1", (r, n // 8)),
        )
        return BlrTensor(m, n, r, (path,) * entry.paths)


def zeros(kind: str, shape: tuple[int, ...]) -> Array:
    """Zeros of a numpy type; read-only, of one element in memory."""
    return np.broadcast_to(np.zeros((), f"<{kind}"), shape)


def _entry(model: CmfFile, name: str) -> Entry:
    found = model.tensors[name]
    if found.dtype != Dtype.BLR:
        return Entry(found.dtype, found.shape, found.nbytes)
    where = f"{model.path}: tensor {name}"
    paths, rank, _, _ = check_payload(model.raw(name)[:16], found.nbytes, where, found.shape[:2])
    return Entry(found.dtype, found.shape, found.nbytes, rank, paths)
