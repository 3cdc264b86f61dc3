"""Shared fixtures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nvgpu.gpu import Device, open_device


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """The machine's adapter as it is; no adapter is a failure."""
    opened = open_device()
    yield opened
    opened.close()
