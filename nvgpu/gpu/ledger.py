"""A device that counts bytes and kernel calls and touches no GPU: what is built on it costs what it would cost for real.

Everything above it, the recorder, the layers, the training loop, runs as it is. Reads give zeros, writes go nowhere.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvgpu.gpu.adapter import AdapterInfo
from nvgpu.gpu.buffer import DTYPES, Buffer
from nvgpu.gpu.device import _MATRIX_MEMORY, OPTIONAL_FEATURES, Device, Pipeline, _switched_off
from nvgpu.gpu.shader import Scalar, ShaderText

KINDS = (
    ("signs", re.compile(r"sign\.|.*#\d+\.[uv]\.(start|lat|ema|mom|second|grad)$")),
    ("optimiser", re.compile(r"params\.|adam\.")),
    ("scales and gains", re.compile(r"params$")),
    ("head", re.compile(r"head\.\d+$")),
    ("head chunk", re.compile(r"head\.")),
    ("staging", re.compile(r".*staging$")),
    ("layers", re.compile(r"rope$|model\.|.*weight$|.*#\d+\.[uv]t?$")),
    ("layer inputs", re.compile(r"kept\.|part\.")),
)
"""What an allocation is for, by its name; the first that matches. The rest is workspace."""


def kind_of(name: str) -> str:
    """The kind of an allocation of this name."""
    return next((kind for kind, pattern in KINDS if pattern.match(name)), "workspace")


@dataclass(frozen=True)
class Kernel:
    """What `Device.pipeline` takes."""

    label: str
    text: ShaderText
    access: tuple[str, ...]
    overrides: Mapping[str, Scalar]


@dataclass(frozen=True)
class Call:
    """A dispatch as the probe repeats it: the kernel, the bytes of its bindings, its params and its workgroups."""

    kernel: Kernel = field(compare=False)
    label: str
    bindings: tuple[int, ...]
    params: bytes
    groups: tuple[int, int, int]


class Ledger(Device):
    """`memory` counts as on a device; `peak_kinds` are the bytes by kind at the peak, `largest` the largest allocation.

    `calls` counts dispatches, `copied` bytes of copies between buffers. `budget` decides what is streamed, and refuses nothing.
    """

    def __init__(
        self, adapter: AdapterInfo, features: frozenset[str], limits: Mapping[str, int], budget: int = 0
    ) -> None:
        self.kinds: Counter[str] = Counter()
        self.peak_kinds: dict[str, int] = {}
        self.largest = ("", 0)
        self.calls: Counter[Call] = Counter()
        self.copied = 0
        self._held: dict[int, tuple[_RawBuffer, str]] = {}
        super().__init__(adapter, _Raw(self, features, limits), {})
        self.budget = budget
        self.kinds.clear()  # the fence is not the caller's
        self.restart()

    @classmethod
    def of(cls, device: Device) -> Ledger:
        """Counts what an opened device would hold."""
        return cls(device.adapter, device.features, device.limits, device.budget)

    @classmethod
    def of_adapter(cls, adapter: AdapterInfo, budget: int = 0) -> Ledger:
        """Counts what the adapter would hold, opened with what it lists; nothing is opened."""
        features = (adapter.features & set(OPTIONAL_FEATURES)) - _switched_off()
        # refused by the installed library, see docs of the matrix units; their kernels also need memory
        memory = adapter.limits.get("max-compute-workgroup-storage-size", 0)
        if "WGPU_LIB_PATH" not in os.environ or memory < _MATRIX_MEMORY:
            features -= {"cooperative-matrix"}
        return cls(adapter, frozenset(features), adapter.limits, budget)

    def restart(self) -> None:
        """Forget peaks and calls; what is allocated stays counted."""
        self.memory.peak = self.memory.live
        self.peak_kinds = dict(self.kinds)
        self.largest = ("", 0)
        self.calls.clear()
        self.copied = 0

    def allocate(self, name: str, nbytes: int, usage: int, mapped: bool = False) -> Any:
        raw = _RawBuffer(nbytes)
        self.memory.add(nbytes)
        self._sizes[raw] = nbytes
        kind = kind_of(name)
        self._held[id(raw)] = raw, kind
        self.kinds[kind] += nbytes
        self.largest = max(self.largest, (name, nbytes), key=lambda entry: entry[1])
        if self.memory.live == self.memory.peak:
            self.peak_kinds = {kind: count for kind, count in self.kinds.items() if count}
        return raw

    def free_raw(self, raw: Any) -> None:
        if id(raw) in self._held:
            held, kind = self._held.pop(id(raw))
            self.kinds[kind] -= held.size
        super().free_raw(raw)

    def free_all(self) -> None:
        """Free whatever is left."""
        for raw, _ in list(self._held.values()):
            if raw is not self._fence.raw:
                self.free_raw(raw)

    def write(self, buffer: Buffer, values: np.ndarray[Any, Any]) -> None:
        pass

    def read(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        return np.broadcast_to(np.zeros((), DTYPES[buffer.dtype]), buffer.shape)

    def pipeline(
        self, label: str, text: ShaderText, access: tuple[str, ...], overrides: Mapping[str, Scalar]
    ) -> Pipeline:
        return Pipeline(label, Kernel(label, text, access, dict(overrides)), None)

    def bind_group(self, pipeline: Pipeline, buffers: Sequence[Buffer], params: bytes) -> Any:
        return tuple(b.bound_nbytes for b in buffers), params


class _RawBuffer:
    """Stands for an allocation of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def destroy(self) -> None:
        pass

    def unmap(self) -> None:
        pass

    def map_async(self, mode: str) -> _Done:
        return _Done()


class _Done:
    def sync_wait(self) -> None:
        pass


class _Raw:
    """Stands for wgpu's device, its queue, its encoders and its passes; dispatches are counted."""

    def __init__(self, ledger: Ledger, features: frozenset[str], limits: Mapping[str, int]) -> None:
        self.features = features
        self.limits = limits
        self.queue = self
        self._ledger = ledger
        self._pipeline: Any = None
        self._group: Any = None

    def create_command_encoder(self) -> _Raw:
        return self

    def begin_compute_pass(self) -> _Raw:
        return self

    def set_pipeline(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def set_bind_group(self, index: int, group: Any) -> None:
        self._group = group

    def dispatch_workgroups(self, *groups: int) -> None:
        x, y, z = groups
        bindings, params = self._group
        call = Call(self._pipeline, self._pipeline.label, bindings, params, (x, y, z))
        self._ledger.calls[call] += 1

    def copy_buffer_to_buffer(self, source: Any, at: int, target: Any, to: int, nbytes: int) -> None:
        self._ledger.copied += nbytes

    def clear_buffer(self, target: Any, at: int, nbytes: int) -> None:
        pass

    def end(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def submit(self, commands: Sequence[Any]) -> None:
        pass

    def destroy(self) -> None:
        pass
