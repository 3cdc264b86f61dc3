"""Adapters, devices, buffers, shader text and recording. Knows no op."""

from nvgpu.gpu.adapter import AdapterInfo, choose_adapter, list_adapters
from nvgpu.gpu.buffer import DTYPES, Buffer
from nvgpu.gpu.device import Device, open_device
from nvgpu.gpu.ledger import Ledger
from nvgpu.gpu.probe import seconds_of
from nvgpu.gpu.profiler import Profiler
from nvgpu.gpu.recorder import Recorder
from nvgpu.gpu.shader import SHADER_ROOT, ShaderText, const_lines, params_struct, resolve
from nvgpu.gpu.staging import Staging
from nvgpu.gpu.trace import Trace

__all__ = [
    "DTYPES",
    "SHADER_ROOT",
    "AdapterInfo",
    "Buffer",
    "Device",
    "Ledger",
    "Profiler",
    "Recorder",
    "ShaderText",
    "Staging",
    "Trace",
    "choose_adapter",
    "const_lines",
    "list_adapters",
    "open_device",
    "params_struct",
    "resolve",
    "seconds_of",
]
