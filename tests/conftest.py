"""Shared fixtures, and the rule for tests that need a real GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import pytest

from nvgpu.gpu import Device, list_adapters, open_device


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """The machine's adapter as it is; no adapter is a failure."""
    opened = open_device()
    yield opened
    opened.close()


@cache
def has_real_gpu() -> bool:
    """Whether tests marked `gpu` run here: a discrete or integrated adapter, or NVGPU_TEST_GPU=1."""
    return os.environ.get("NVGPU_TEST_GPU") == "1" or any(
        adapter.type in ("discrete", "integrated") for adapter in list_adapters()
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not has_real_gpu():
        pytest.skip("needs a discrete or integrated GPU; NVGPU_TEST_GPU=1 runs it on whatever is here")
