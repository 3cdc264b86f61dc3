"""Buffers, accounting, recording, staging and errors of the device layer."""

from __future__ import annotations

import numpy as np
import pytest

from nvgpu.errors import DeviceLostError, GpuError, LimitError, OutOfMemoryError, ShaderError
from nvgpu.gpu import Device, Profiler, Recorder, Staging, open_device, resolve, selftest
from nvgpu.gpu.device import translated
from nvgpu.gpu.shader import ShaderText
from nvgpu.ops import linear, norm


def test_write_read_and_views(device: Device) -> None:
    values = np.arange(130, dtype=np.float32)
    buffer = device.upload("x", values)
    assert np.array_equal(buffer.read(), values)
    view = buffer.view((2, 33), 64)
    assert np.array_equal(view.read(), values[64:130].reshape(2, 33))
    with pytest.raises(LimitError, match="x: byte offset 4"):
        buffer.view((1,), 1)
    with pytest.raises(LimitError, match="64..164 of 130"):
        buffer.view((100,), 64)
    device.free(buffer)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_f16_of_any_length(device: Device, count: int) -> None:
    values = np.arange(count, dtype=np.float16) / 3
    buffer = device.upload("h", values, "f16")
    assert np.array_equal(buffer.read(), values)
    device.free(buffer)


def test_wrong_element_count_names_the_buffer(device: Device) -> None:
    buffer = device.buffer("weights", (3, 4))
    with pytest.raises(GpuError, match=r"weights: 5 elements, expected 12 \[3, 4\]"):
        buffer.write(np.zeros(5))
    device.free(buffer)


def test_copy_and_clear_are_exact(device: Device) -> None:
    rng = np.random.default_rng(0)
    source = device.upload("source", rng.standard_normal(513).astype(np.float32))
    target = device.upload("target", np.full(513, np.nan, np.float32))
    other = device.upload("other", np.full(577, 7.0, np.float32))
    with Recorder(device) as rec:
        rec.copy(source, target)
        rec.clear(other.view((512,), 64))
    assert target.read().tobytes() == source.read().tobytes()
    after = other.read()
    assert (after[:64] == 7).all() and (after[64:576] == 0).all() and after[576] == 7
    with pytest.raises(LimitError, match="source to other: 2052 bytes into 2308"):
        Recorder(device).copy(source, other)
    device.free(source, target, other)


def test_accounting_returns_to_the_start() -> None:
    device = open_device()
    buffers = [device.buffer(f"b{i}", (1000,)) for i in range(3)]
    assert device.memory.live == 3 * 4096 and device.memory.count == 3
    device.free(*buffers)
    device.free(buffers[0])
    assert device.memory.live == 0 and device.memory.count == 0 and device.memory.peak == 3 * 4096
    device.close()


def test_freeing_drops_bind_groups(device: Device) -> None:
    before = len(device._caches.bind_groups)
    x, w = device.upload("x", np.ones((2, 4))), device.upload("w", np.ones(4))
    y, r = device.buffer("y", (2, 4)), device.buffer("r", (2,))
    with Recorder(device) as rec:
        norm.rms_norm_fwd(rec, x=x, w=w, y=y, rstd=r, eps=1e-6, gemma=0)
    assert len(device._caches.bind_groups) == before + 1
    device.free(x, w, y, r)
    assert len(device._caches.bind_groups) == before


def test_limit_exceeded_names_buffer_bytes_and_limit(device: Device) -> None:
    too_many = device.max_binding // 4 + 1
    with pytest.raises(
        LimitError, match=rf"buffer logits \[{too_many}\] f32: {4 * too_many} bytes, the device allows"
    ):
        device.buffer("logits", (too_many,))


def test_staging_round_trips(device: Device) -> None:
    staging, target = Staging(device, "upload", 4000), device.buffer("target", (1000,))
    rec = Recorder(device)
    for value in (1.0, 2.0, 3.0):
        staging.view((1000,), np.dtype(np.float32))[:] = value
        staging.send(rec, target)
        assert (target.read() == value).all()
    staging.free()
    device.free(target)


def test_profiler_times_every_kernel(device: Device) -> None:
    if "timestamp-query" not in device.features:
        with pytest.raises(GpuError, match="timestamp-query"):
            Profiler(device)
        return
    x, w = device.upload("x", np.ones((64, 64))), device.upload("w", np.ones(64))
    y, r = device.buffer("y", (64, 64)), device.buffer("r", (64,))
    profiler = Profiler(device)
    with Recorder(device, profiler) as rec:
        for _ in range(600):  # more than one set of queries
            norm.rms_norm_fwd(rec, x=x, w=w, y=y, rstd=r, eps=1e-6, gemma=0)
    ((label, calls, seconds),) = profiler.table()
    assert label.startswith("rms_norm_fwd") and calls == 600 and seconds > 0
    device.free(x, w, y, r)


def test_submissions_split_by_estimated_time(device: Device) -> None:
    x, w = device.upload("x", np.ones((4, 4))), device.upload("w", np.ones(4))
    y, r = device.buffer("y", (4, 4)), device.buffer("r", (4,))
    rec = Recorder(device)
    norm.rms_norm_fwd(rec, x=x, w=w, y=y, rstd=r, eps=1e-6, gemma=0)
    assert rec.submissions == 0
    rec._seconds = 10.0
    norm.rms_norm_fwd(rec, x=x, w=w, y=y, rstd=r, eps=1e-6, gemma=0)
    assert rec.submissions == 1
    device.free(x, w, y, r)


def test_shader_errors_name_the_source_file(device: Device) -> None:
    good = resolve("norm/rms_norm_fwd.wgsl", ["const WG: u32 = 64u;", "struct Params {", "    N: u32,", "}"])
    with pytest.raises(ShaderError, match=r"(?s)broken: .*norm/rms_norm_fwd.wgsl:\d+:\d+"):
        device.pipeline("broken", good, ("read", "read", "read_write", "read_write"), {})


def test_error_translation() -> None:
    import wgpu

    for raised, expected in (
        (wgpu.GPUOutOfMemoryError("no"), OutOfMemoryError),
        (wgpu.GPUValidationError("Parent device is lost"), DeviceLostError),
        (wgpu.GPUValidationError("odd"), GpuError),
    ):
        with pytest.raises(expected, match="op x"), translated("op x"):
            raise raised


def test_a_destroyed_device_is_reported_as_lost() -> None:
    device = open_device()
    device.raw.destroy()
    with pytest.raises(DeviceLostError, match="late"):
        device.buffer("late", (4,))


def test_line_map_points_behind_the_preamble() -> None:
    text = resolve("norm/rms_norm_fwd.wgsl", ["const WG: u32 = 64u;"], ("f16",), ("lib/group_index.wgsl",))
    assert isinstance(text, ShaderText)
    lines = text.code.splitlines()
    assert lines[0] == "enable f16;" and text.origins[0] == "preamble"
    at = next(i for i, line in enumerate(lines) if line.startswith("@group(0) @binding(2)"))
    path, number = text.origins[at].split(":")
    from nvgpu.gpu import SHADER_ROOT

    assert (SHADER_ROOT / path).read_text().splitlines()[int(number) - 1] == lines[at]
    assert sum("fn group_index" in line for line in lines) == 1
    with pytest.raises(ShaderError, match="no/such.wgsl"):
        resolve("no/such.wgsl", [])


# ── self-tests and shader checks ──


def test_checked_and_trusted_shaders_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((37, 68)), rng.standard_normal((20, 68))
    results = []
    for checks in ("0", "1"):
        monkeypatch.setenv("NVGPU_SHADER_CHECKS", checks)
        device = open_device()
        y = device.buffer("y", (37, 20))
        with Recorder(device) as rec:
            linear.matmul_nt(rec, x=device.upload("x", x), w=device.upload("w", w), y=y)
        results.append(y.read().tobytes())
        device.close()
    assert results[0] == results[1]


def test_a_feature_that_fails_its_self_test_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "subgroup_self_test", lambda device: "self-test failed: made up")
    monkeypatch.setattr(selftest, "matrix_units_self_test", lambda device: "self-test failed: made up")
    device = open_device()
    assert not {"subgroup", "cooperative-matrix"} & device.features
    assert not device.matrix_units
    for name in {"subgroup", "cooperative-matrix"} & set(device.adapter.features):
        assert "self-test failed" in device.refused[name] or "experimental" in device.refused[name]
    device.close()


def test_subgroup_self_test_passes_where_subgroups_are_used(device: Device) -> None:
    if "subgroup" in device.features:
        assert selftest.subgroup_self_test(device) is None


@pytest.mark.gpu
def test_matrix_units_self_test_passes_where_they_are_used(device: Device) -> None:
    if device.matrix_units:
        assert selftest.matrix_units_self_test(device) is None
