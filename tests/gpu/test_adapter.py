"""Adapter choice, feature switches and the errors of a wrong selector."""

from __future__ import annotations

import pytest

from nvgpu.errors import InputError, NoAdapterError
from nvgpu.gpu import AdapterInfo, choose_adapter, list_adapters, open_device


def adapter(index: int, name: str, kind: str) -> AdapterInfo:
    return AdapterInfo(index, name, kind, "Vulkan", "driver", frozenset(), {}, None)


MACHINE = [
    adapter(0, "llvmpipe", "cpu"),
    adapter(1, "Radeon", "integrated"),
    adapter(2, "RTX", "discrete"),
    adapter(3, "RTX", "discrete"),
]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVGPU_ADAPTER", raising=False)
    monkeypatch.delenv("NVGPU_FEATURES", raising=False)


@pytest.mark.parametrize(
    ("selector", "index"),
    [
        (None, 2),
        ("0", 0),
        ("3", 3),
        ("cpu", 0),
        ("integrated", 1),
        ("discrete", 2),
        ("radeon", 1),
        ("RTX", 2),
    ],
)
def test_choice(selector: str | None, index: int) -> None:
    assert choose_adapter(MACHINE, selector).index == index


def test_environment_selects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVGPU_ADAPTER", "3")
    assert choose_adapter(MACHINE).index == 3
    assert choose_adapter(MACHINE, "cpu").index == 0


@pytest.mark.parametrize("selector", ["7", "tpu", "GeForce"])
def test_no_match_lists_what_is_there(selector: str) -> None:
    with pytest.raises(NoAdapterError, match=f"{selector}.*llvmpipe.*Radeon.*RTX"):
        choose_adapter(MACHINE, selector)


def test_no_adapter_says_what_to_install() -> None:
    with pytest.raises(NoAdapterError, match="mesa-vulkan-drivers"):
        choose_adapter([])


def test_this_machine_has_an_adapter() -> None:
    adapters = list_adapters()
    assert adapters and [a.index for a in adapters] == list(range(len(adapters)))
    assert all(a.backend in ("Vulkan", "Metal", "D3D12") for a in adapters)


def test_features_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVGPU_FEATURES", "-shader-f16,-subgroup")
    device = open_device()
    assert "shader-f16" not in device.features and "subgroup" not in device.features
    if "shader-f16" in device.adapter.features:
        assert device.refused["shader-f16"] == "switched off by NVGPU_FEATURES"
    device.close()


@pytest.mark.parametrize("value", ["shader-f16", "-warp-drive"])
def test_unknown_feature_switch_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NVGPU_FEATURES", value)
    with pytest.raises(InputError, match="NVGPU_FEATURES"):
        open_device()


def test_default_limits_are_granted() -> None:
    device = open_device(default_limits=True)
    assert device.limits["max-storage-buffers-per-shader-stage"] == 8
    assert device.max_binding == 128 << 20
    device.close()
