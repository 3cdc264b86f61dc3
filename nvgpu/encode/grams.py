"""Gram matrices of the inputs of the body's linears: X Xᵀ over calibration tokens, for encoding and for judging.

One forward of the full-precision model gives them all, layer by layer: the residual stream of every batch stays on the device, so
only one layer's Grams are there at a time. Linears that read the same input share one. FIT Grams weigh the encoders' error, SEL
Grams (of other tokens) judge the result. They are sums in f32 over a batch's tokens, kept as f32 divided by the number of tokens.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu.errors import InputError
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.files import AtomicFile, read_file
from nvgpu.gpu import Buffer, Device, Recorder
from nvgpu.layers.workspace import Workspace
from nvgpu.model import names
from nvgpu.model.geometry import Geometry
from nvgpu.model.net import Net, NetOptions
from nvgpu.ops import transposed
from nvgpu.progress import Progress

Array = np.ndarray[Any, Any]
SETS = ("fit", "sel")
_ROWS = 2048  # tokens of a batch
_BODY = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class GramFolder:
    """Grams as files `L{layer}.{lead}.{fit|sel}.gram` (numpy's format), which appear complete or not at all."""

    path: Path

    def file(self, name: str, kind: str) -> Path:
        """The file of the Gram for the linear `name`."""
        match = _BODY.fullmatch(name)
        assert match is not None, name
        return self.path / f"L{match[1]}.{names.lead(match[2]).removesuffix('.weight')}.{kind}.gram"

    def write(self, name: str, kind: str, gram: Array) -> None:
        data = io.BytesIO()
        np.save(data, gram.astype("<f4"), allow_pickle=False)
        with AtomicFile(self.file(name, kind)) as out:
            out.write(data.getvalue())

    def read(self, name: str, kind: str) -> Array:
        """float64 `[n, n]`.

        Raises:
            InputError: missing or damaged.
        """
        path = self.file(name, kind)
        try:
            gram: Array = np.load(io.BytesIO(read_file(path)), allow_pickle=False)
        except (ValueError, EOFError) as e:
            raise InputError(f"{path}: damaged: {e}") from e
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not np.isfinite(gram).all():
            raise InputError(f"{path}: {gram.dtype} {list(gram.shape)}, expected a finite square matrix")
        return gram.astype(np.float64)


def capture(
    device: Device,
    model: CmfFile,
    windows: Mapping[str, Array],
    folder: GramFolder,
    progress: Progress,
) -> None:
    """Write the Grams of every body linear of `model` for `windows` by set, u32 `[windows, T]`.

    Raises:
        InputError: an activation that is not finite, or ids outside the vocabulary.
    """
    geometry, window = Geometry.of(model), next(iter(windows.values())).shape[1]
    for ids in windows.values():
        if int(ids.max()) >= geometry.vocab_size:
            raise InputError(
                f"{model.path}: token {int(ids.max())}, the vocabulary has {geometry.vocab_size}"
            )
    tap = _Sums(device)
    net = Net(device, model, NetOptions(window), tap)
    ws, rec = Workspace(device), Recorder(device)
    parts = {kind: _Batch.of(net, rec, ws, kind, ids) for kind, ids in windows.items()}
    progress.start("grams", geometry.num_layers, "layers")
    for layer in range(geometry.num_layers):
        block = net.block(rec, layer)
        for kind, batches in parts.items():
            tap.clear(rec)
            for batch in batches:
                block.forward(rec, ws, batch.x, batch.y)
                batch.swap()
            rec.flush()
            for name, gram in tap.read(windows[kind].size):
                if not np.isfinite(gram).all():
                    raise InputError(f"{model.path}: the input of {name} is not finite on this text")
                folder.write(name, kind, gram)
        tap.free()
        progress.advance()
    progress.stop()
    ws.free()
    net.free()


def damped(gram: Array, share: float = 0.03) -> Array:
    """The Gram an encoder can use: every channel's own energy is raised by `share`, and dead channels get a floor.

    The damping is in proportion to the diagonal, so that one channel of huge size does not drown the rest; the floor is
    1e-4 of the median of the channels that are not dead (1 where all are), so that every weight counts for something.
    Scaled to a mean diagonal of 1.
    """
    diagonal = np.diagonal(gram)
    live = diagonal[diagonal > 0]
    floor = 1e-4 * float(np.median(live)) if live.size else 1.0
    full: Array = (gram + gram.T) / 2 + np.diag(share * diagonal + floor)
    return full / float(np.mean(np.diagonal(full)))


@dataclass
class _Batch:
    """The residual stream of some windows, before and after a layer."""

    x: Buffer
    y: Buffer

    @classmethod
    def of(cls, net: Net, rec: Recorder, ws: Workspace, kind: str, ids: Array) -> list[_Batch]:
        """The embeddings of `ids` `[windows, T]`, in batches."""
        per = max(1, _ROWS // ids.shape[1])
        batches = []
        for first in range(0, len(ids), per):
            flat = np.ascontiguousarray(ids[first : first + per]).reshape(-1)
            shape = (flat.size, net.geometry.hidden_size)
            batch = cls(*(ws.buf(f"{kind}.{first}.{side}", shape) for side in "xy"))
            net.embedding.forward(rec, ws, flat, batch.x)
            batches.append(batch)
        return batches

    def swap(self) -> None:
        self.x, self.y = self.y, self.x


class _Sums:
    """The tap: sums the Grams of what it sees, by name of the linear."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.sums: dict[str, Buffer] = {}

    def __call__(self, rec: Recorder, name: str, x: Buffer) -> None:
        width = x.shape[1]
        if name not in self.sums:
            self.sums[name] = self.device.buffer(f"gram of {name}", (width, width))
        transposed.matmul_tn_acc(rec, x=x, w=x, y=self.sums[name])

    def clear(self, rec: Recorder) -> None:
        for buffer in self.sums.values():
            rec.clear(buffer)

    def read(self, tokens: int) -> Sequence[tuple[str, Array]]:
        return [(name, buffer.read() / np.float32(tokens)) for name, buffer in self.sums.items()]

    def free(self) -> None:
        self.device.free(*self.sums.values())
        self.sums.clear()
