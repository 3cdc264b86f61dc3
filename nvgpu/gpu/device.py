"""The device: its features and limits, allocations, pipeline and bind-group caches, and errors in our words."""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvgpu.errors import DeviceLostError, GpuError, InputError, LimitError, OutOfMemoryError, ShaderError
from nvgpu.gpu.adapter import AdapterInfo, choose_adapter, list_adapters
from nvgpu.gpu.buffer import BIND_ALIGN, DTYPES, VIEW_ALIGN, Buffer, round_up
from nvgpu.gpu.shader import Scalar, ShaderText

OPTIONAL_FEATURES = ("shader-f16", "subgroup", "timestamp-query", "cooperative-matrix")
WEBGPU_DEFAULT_LIMITS = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-storage-buffer-binding-size": 128 << 20,
    "max-buffer-size": 256 << 20,
    "max-compute-workgroups-per-dimension": 65535,
}
_MAX_BINDING = (2 << 30) - 4  # wgpu keeps binding sizes in an i32 (gfx-rs/wgpu#8105)
_UNIFORM_ALIGN = 16
_MATRIX_MEMORY = 40 << 10  # bytes of workgroup memory that gemm_matrix needs


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn wgpu's errors into ours; `what` names the op or buffer at hand."""
    import wgpu

    try:
        yield
    except wgpu.GPUOutOfMemoryError as e:
        raise OutOfMemoryError(f"{what}: out of device memory") from e
    except (wgpu.GPUError, RuntimeError) as e:
        text = " ".join(str(e).split())
        if "device is lost" in text.lower():
            raise DeviceLostError(f"{what}: the device was lost") from e
        if "out of memory" in text.lower() or "not enough memory" in text.lower():
            raise OutOfMemoryError(f"{what}: out of device memory") from e
        raise GpuError(f"{what}: {text}") from e


@dataclass
class MemoryAccount:
    """Bytes allocated on the device, by us."""

    live: int = 0
    peak: int = 0
    count: int = 0

    def add(self, nbytes: int) -> None:
        self.live += nbytes
        self.count += 1
        self.peak = max(self.peak, self.live)

    def remove(self, nbytes: int) -> None:
        self.live -= nbytes
        self.count -= 1


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A compiled kernel with its explicit bind-group layout."""

    label: str
    raw: Any
    layout: Any


@dataclass
class _Caches:
    pipelines: dict[Any, Pipeline] = field(default_factory=dict)
    bind_groups: dict[Any, Any] = field(default_factory=dict)
    groups_of: dict[int, set[Any]] = field(default_factory=dict)
    uniforms: dict[bytes, Any] = field(default_factory=dict)


def _switched_off() -> set[str]:
    """Features that `NVGPU_FEATURES` (such as `-shader-f16,-subgroup`) turns off."""
    off = set()
    for item in filter(None, (s.strip() for s in os.environ.get("NVGPU_FEATURES", "").split(","))):
        if not item.startswith("-") or item[1:] not in OPTIONAL_FEATURES:
            raise InputError(
                f"NVGPU_FEATURES: found {item!r}, expected -NAME with NAME one of {', '.join(OPTIONAL_FEATURES)}"
            )
        off.add(item[1:])
    return off


class Device:
    """An opened adapter. `refused` says why a listed feature is not in use."""

    def __init__(self, adapter: AdapterInfo, raw: Any, refused: Mapping[str, str]) -> None:
        self.adapter = adapter
        self.raw = raw
        self.features = frozenset(raw.features)
        self.limits: dict[str, int] = {k: int(v) for k, v in raw.limits.items()}
        self.refused = dict(refused)
        self.is_cpu = adapter.type == "cpu"
        self.memory = MemoryAccount()
        self.budget = 0  # bytes that may be in use at a time; 0: no bound
        self.waited = 0.0  # seconds the host has spent in reads, waiting for the device
        self.uploaded = self.read_back = 0  # bytes moved to the device and back
        self.plans: dict[
            Any, Any
        ] = {}  # resolved op calls, kept here so that they live as long as their pipelines
        self._caches = _Caches()
        self._sizes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._fence = self.buffer("fence", (1,))
        self.memory = MemoryAccount()  # the fence is not the caller's

    @property
    def matrix_units(self) -> bool:
        """Whether GEMMs can run on matrix units, with f16 inputs and f32 sums."""
        return {"cooperative-matrix", "shader-f16"} <= self.features

    @property
    def max_binding(self) -> int:
        """Largest storage binding in bytes."""
        return min(self.limits["max-storage-buffer-binding-size"], _MAX_BINDING)

    # ── buffers ──

    def buffer(self, name: str, shape: Sequence[int], dtype: str = "f32") -> Buffer:
        """A zeroed storage buffer that can be bound, copied, read and written.

        Raises:
            LimitError: more bytes than the device lets one binding or buffer have.
            OutOfMemoryError: the allocation failed.
        """
        import wgpu

        shape = tuple(int(n) for n in shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize
        limit = min(self.max_binding, self.limits["max-buffer-size"])
        if nbytes > limit:
            raise LimitError(
                f"buffer {name} {list(shape)} {dtype}: {nbytes} bytes, the device allows {limit}"
            )
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        return Buffer(
            name,
            shape,
            dtype,
            self,
            self.allocate(name, max(round_up(nbytes, VIEW_ALIGN), VIEW_ALIGN), usage),
        )

    def allocate(self, name: str, nbytes: int, usage: int, mapped: bool = False) -> Any:
        """A raw, accounted allocation.

        Raises:
            OutOfMemoryError: it failed, or would exceed `budget`.
        """
        if self.budget and self.memory.live + nbytes > self.budget:
            raise OutOfMemoryError(
                f"buffer {name}: {nbytes} bytes on top of {self.memory.live} in use exceed the budget of {self.budget} "
                "bytes (--vram)"
            )
        with translated(f"buffer {name} ({nbytes} bytes; {self.memory.live} bytes in use)"):
            raw = self.raw.create_buffer(label=name, size=nbytes, usage=usage, mapped_at_creation=mapped)
        self.memory.add(nbytes)
        self._sizes[raw] = nbytes
        return raw

    def free(self, *buffers: Buffer) -> None:
        """Destroy the allocations behind `buffers` and every bind group that uses them."""
        for buffer in buffers:
            self.free_raw(buffer.raw)

    def free_raw(self, raw: Any) -> None:
        nbytes = self._sizes.pop(raw, None)
        if nbytes is None:
            return
        for key in self._caches.groups_of.pop(id(raw), ()):
            self._caches.bind_groups.pop(key, None)
        raw.destroy()
        self.memory.remove(nbytes)

    def upload(self, name: str, values: np.ndarray[Any, Any], dtype: str = "f32") -> Buffer:
        """A new buffer that holds `values`."""
        buffer = self.buffer(name, values.shape, dtype)
        self.write(buffer, values)
        return buffer

    def write(self, buffer: Buffer, values: np.ndarray[Any, Any]) -> None:
        """Queue a write of `values` into `buffer`; it precedes everything submitted later."""
        data = np.ascontiguousarray(values, DTYPES[buffer.dtype]).reshape(-1)
        if data.size != buffer.size:
            raise GpuError(
                f"write to {buffer.name}: {data.size} elements, expected {buffer.size} {list(buffer.shape)}"
            )
        if data.size == 0:
            return
        if data.nbytes % 4:
            data = np.concatenate(
                [data, np.zeros(4 // data.itemsize - data.size % (4 // data.itemsize), data.dtype)]
            )
        with translated(f"write to {buffer.name}"):
            self.raw.queue.write_buffer(buffer.raw, buffer.offset, data)
        self.uploaded += data.nbytes

    def read(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        """The content of `buffer`, shaped and typed; waits for the work submitted before."""
        if buffer.size == 0:
            return np.zeros(buffer.shape, DTYPES[buffer.dtype])
        began = time.perf_counter()
        with translated(f"read of {buffer.name}"):
            data = self.raw.queue.read_buffer(buffer.raw, buffer.offset, round_up(buffer.nbytes, 4))
        self.waited += time.perf_counter() - began
        self.read_back += buffer.nbytes
        return np.frombuffer(data, DTYPES[buffer.dtype], buffer.size).reshape(buffer.shape)

    # ── pipelines and bind groups ──

    def pipeline(
        self, label: str, text: ShaderText, access: tuple[str, ...], overrides: Mapping[str, Scalar]
    ) -> Pipeline:
        """The compiled kernel: `access` gives `read` or `read_write` for each storage binding; params come last.

        Raises:
            ShaderError: the text does not compile; positions name the source file.
        """
        import wgpu

        key = (text.code, access, tuple(sorted(overrides.items())))
        found = self._caches.pipelines.get(key)
        if found is not None:
            return found
        kinds = {"read": "read-only-storage", "read_write": "storage"}
        entries: list[dict[str, Any]] = [
            {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kinds[mode]}}
            for i, mode in enumerate(access)
        ]
        entries.append(
            {"binding": len(access), "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": "uniform"}}
        )
        try:
            layout = self.raw.create_bind_group_layout(entries=entries)
            module = self._module(label, text.code)
            raw = self.raw.create_compute_pipeline(
                label=label,
                layout=self.raw.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": "main", "constants": dict(overrides)},
            )
        except wgpu.GPUError as e:
            if "device is lost" in str(e).lower():
                raise DeviceLostError(f"{label}: the device was lost") from e
            raise ShaderError(f"{label}: {text.locate(str(e)).strip()}") from e
        self._caches.pipelines[key] = pipeline = Pipeline(label, raw, layout)
        return pipeline

    def _module(self, label: str, code: str) -> Any:
        """The compiled module: without bounds and loop checks, since the parity harness proves the kernels' indices.

        `NVGPU_SHADER_CHECKS=1` puts the checks back. wgpu-py has no call for it, hence the native one.
        """
        if os.environ.get("NVGPU_SHADER_CHECKS", "0") not in ("", "0"):
            return self.raw.create_shader_module(label=label, code=code)
        from wgpu.backends.wgpu_native import _api

        ffi, text, name = _api.ffi, code.encode(), label.encode()
        held = ffi.new("char[]", text), ffi.new("char[]", name)
        source = ffi.new("WGPUShaderSourceWGSL *")
        source.chain.sType = _api.lib.WGPUSType_ShaderSourceWGSL
        source.code.data, source.code.length = held[0], len(text)
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        descriptor.label.data, descriptor.label.length = held[1], len(name)
        raw = _api.libf.wgpuDeviceCreateShaderModuleTrusted(self.raw._internal, descriptor, 0)
        return _api.GPUShaderModule(label, raw, self.raw)

    def bind_group(self, pipeline: Pipeline, buffers: Sequence[Buffer], params: bytes) -> Any:
        """The cached bind group of `buffers` in binding order, then the params."""
        key = (id(pipeline), params, *((id(b.raw), b.offset, b.bound_nbytes) for b in buffers))
        found = self._caches.bind_groups.get(key)
        if found is not None:
            return found
        for b in buffers:
            if b.bound_nbytes > self.max_binding:
                raise LimitError(
                    f"{pipeline.label}: binding {b.name} is {b.bound_nbytes} bytes, the device allows {self.max_binding}"
                )
        uniform = self._uniform(pipeline.label, params)
        entries = [
            {"binding": i, "resource": {"buffer": b.raw, "offset": b.offset, "size": b.bound_nbytes}}
            for i, b in enumerate(buffers)
        ]
        entries.append(
            {"binding": len(buffers), "resource": {"buffer": uniform, "offset": 0, "size": uniform.size}}
        )
        with translated(pipeline.label):
            group = self.raw.create_bind_group(layout=pipeline.layout, entries=entries)
        self._caches.bind_groups[key] = group
        for b in buffers:
            self._caches.groups_of.setdefault(id(b.raw), set()).add(key)
        return group

    def _uniform(self, label: str, params: bytes) -> Any:
        """A uniform buffer with this content; equal contents share one, and none is ever rewritten."""
        import wgpu

        found = self._caches.uniforms.get(params)
        if found is None:
            size = max(round_up(len(params), _UNIFORM_ALIGN), _UNIFORM_ALIGN)
            with translated(f"{label}: params buffer ({size} bytes)"):
                found = self.raw.create_buffer_with_data(
                    data=params.ljust(size, b"\0"), usage=wgpu.BufferUsage.UNIFORM
                )
            self._caches.uniforms[params] = found
        return found

    def wait(self) -> None:
        """Block until everything submitted has run.

        By reading four bytes: wgpu-py 0.32 raises a TypeError in `on_submitted_work_done_sync`.
        """
        self._fence.read()

    def close(self) -> None:
        """Drop the caches and the device; buffers made on it are gone."""
        self._caches = _Caches()
        self.raw.destroy()


def open_device(selector: str | None = None, *, default_limits: bool = False, budget: int = 0) -> Device:
    """Open the chosen adapter with its real limits and every optional feature it grants.

    `budget` bounds the bytes in use at a time (0: no bound).
    `default_limits` asks for the WebGPU defaults instead, to show that the kernels run within them.

    Raises:
        NoAdapterError: see `choose_adapter`.
        GpuError: the adapter refused to give a device.
    """
    adapter = choose_adapter(list_adapters(), selector)
    off = _switched_off()
    wanted = [f for f in OPTIONAL_FEATURES if f in adapter.features and f not in off]
    refused = {f: "switched off by NVGPU_FEATURES" for f in off if f in adapter.features}
    limits = dict(WEBGPU_DEFAULT_LIMITS) if default_limits else dict(adapter.limits)
    limits = {
        k: v
        for k, v in limits.items()
        if 0 < adapter.limits.get(k, 0) < 1 << 32 or k.startswith("max-buffer")
    }
    try:
        raw = _request(adapter, wanted, limits)
    except RuntimeError as e:
        if "cooperative-matrix" not in wanted:
            raise GpuError(f"adapter {adapter.label}: {' '.join(str(e).split())}") from e
        wanted.remove("cooperative-matrix")
        refused["cooperative-matrix"] = (
            "listed, but this wgpu build refuses it as experimental (on Linux tools/enable_matrix_units.py helps)"
        )
        with translated(f"adapter {adapter.label}"):
            raw = _request(adapter, wanted, limits)
    device = Device(adapter, raw, refused)
    device.budget = budget
    _earn_subgroups(device)
    _earn_matrix_units(device)
    return device


def _earn_subgroups(device: Device) -> None:
    """Turn subgroups off where kernels that share a column among 8 lanes would go wrong."""
    from nvgpu.gpu.selftest import subgroup_self_test

    reason = subgroup_self_test(device) if "subgroup" in device.features else None
    if reason is not None:
        device.features -= {"subgroup"}
        device.refused["subgroup"] = reason


def _earn_matrix_units(device: Device) -> None:
    """Turn matrix units off where they do not give the right results, or where their kernels do not fit."""
    if "cooperative-matrix" not in device.features:
        return
    reason = _against_matrix_units(device)
    if reason is not None:
        device.features -= {"cooperative-matrix"}
        device.refused["cooperative-matrix"] = reason
        if reason.startswith("self-test"):
            warnings.warn(f"adapter {device.adapter.label}: matrix units are off: {reason}", stacklevel=3)


def _against_matrix_units(device: Device) -> str | None:
    """Why a device that grants them cannot use them; None if it can."""
    from nvgpu.gpu.selftest import matrix_units_self_test

    memory = device.limits["max-compute-workgroup-storage-size"]
    if memory < _MATRIX_MEMORY:
        return f"{memory} bytes of workgroup memory, the kernels need {_MATRIX_MEMORY}"
    if not device.matrix_units:
        return "needs shader-f16"
    return matrix_units_self_test(device)


def _request(adapter: AdapterInfo, features: Sequence[str], limits: Mapping[str, int]) -> Any:
    return adapter.raw.request_device_sync(required_features=list(features), required_limits=dict(limits))


__all__ = ["BIND_ALIGN", "Device", "MemoryAccount", "Pipeline", "open_device", "translated"]
