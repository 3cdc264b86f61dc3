"""The device fails in the middle of a run: one line that names the op or the buffer, and no output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import wgpu

from tests.cli.conftest import refused, train


def _failing(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, after: int, error: Exception) -> None:
    """The call number `after` of a wgpu method raises."""
    original, calls = getattr(owner, method), iter(range(1 << 30))

    def replaced(self: Any, *args: Any, **given: Any) -> Any:
        if next(calls) >= after:
            raise error
        return original(self, *args, **given)

    monkeypatch.setattr(owner, method, replaced)


@pytest.mark.parametrize("after", [30, 150])
def test_out_of_device_memory(
    teacher: Path, student: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    import wgpu.backends.wgpu_native as native

    _failing(monkeypatch, native.GPUDevice, "create_buffer", after, wgpu.GPUOutOfMemoryError("no"))
    result = train(student, teacher, text, tmp_path / "out.cmf")
    refused(result, "out of device memory", "buffer ", " bytes")
    assert not list(tmp_path.glob("*out.cmf*"))


@pytest.mark.parametrize("after", [3, 400])
def test_the_device_is_lost(
    teacher: Path, student: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    import wgpu.backends.wgpu_native as native

    lost = wgpu.GPUValidationError("Parent device is lost")
    _failing(monkeypatch, native.GPUComputePassEncoder, "dispatch_workgroups", after, lost)
    result = train(student, teacher, text, tmp_path / "out.cmf")
    refused(result, "the device was lost")
    assert re.search(r"error: \w+\.[\w-]+.*: the device was lost", result.stderr)
    assert not list(tmp_path.glob("*out.cmf*"))


@pytest.mark.parametrize(
    ("owner", "method", "error", "said"),
    [
        (
            "GPUComputePassEncoder",
            "dispatch_workgroups",
            wgpu.GPUValidationError("Parent device is lost"),
            "the device was lost",
        ),
        ("GPUQueue", "write_buffer", wgpu.GPUOutOfMemoryError("no"), "out of device memory"),
    ],
)
def test_a_run_goes_on_after_the_device_failed(
    teacher: Path,
    student: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: str,
    method: str,
    error: Exception,
    said: str,
) -> None:
    """The device fails behind two saved steps; resumed, the run ends with the bytes of one that never failed."""
    import wgpu.backends.wgpu_native as native

    state, calls = tmp_path / "state", 0
    original = getattr(getattr(native, owner), method)

    def replaced(self: Any, *args: Any, **given: Any) -> Any:
        nonlocal calls
        calls += len(list(state.glob("step-00000002"))) if state.exists() else 0
        if calls > 3:
            raise error
        return original(self, *args, **given)

    saving = ("--state-dir", state, "--state-every", 1, "--tokens", 160)
    assert train(student, teacher, text, tmp_path / "whole.cmf", "--tokens", 160).exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(getattr(native, owner), method, replaced)
        refused(train(student, teacher, text, tmp_path / "out.cmf", *saving), said)
    assert [p.name for p in state.iterdir()] == ["step-00000002"] and not (tmp_path / "out.cmf").exists()
    result = train(student, teacher, text, tmp_path / "out.cmf", *saving, "--resume", state)
    assert result.exit_code == 0, result.output
    assert "going on from step 2" in result.stderr
    assert (tmp_path / "out.cmf").read_bytes() == (tmp_path / "whole.cmf").read_bytes()
