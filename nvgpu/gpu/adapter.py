"""Which adapters the machine has, and the choice of one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nvgpu.errors import NoAdapterError
from nvgpu.gpu.matrix_units import activate

_TYPE_NAMES = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "cpu"}
_PREFERENCE = ("discrete", "integrated", "other", "cpu")
_BACKENDS = ("Vulkan", "Metal", "D3D12")


@dataclass(frozen=True)
class AdapterInfo:
    """One adapter; `index` is what `--adapter` takes and keeps two equal cards apart."""

    index: int
    name: str
    type: str
    backend: str
    driver: str
    features: frozenset[str]
    limits: dict[str, int]
    raw: Any = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        """One line for reports: index, name, type, backend, driver."""
        return f"{self.index}: {self.name} ({self.type}, {self.backend}, {self.driver or 'driver unknown'})"


def list_adapters() -> list[AdapterInfo]:
    """All Vulkan, Metal and DX12 adapters, in the order the system reports them.

    OpenGL adapters are left out: they lack the storage-buffer limits every kernel relies on.
    """
    os.environ.setdefault(
        "XDG_RUNTIME_DIR", os.environ.get("TMPDIR", "/tmp")
    )  # the EGL loader complains without one
    activate()
    import wgpu  # here, so that commands that need no device start without the native library

    found = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] in _BACKENDS]
    return [
        AdapterInfo(
            index=i,
            name=a.info["device"],
            type=_TYPE_NAMES.get(a.info["adapter_type"], "other"),
            backend=a.info["backend_type"],
            driver=a.info["description"],
            features=frozenset(a.features),
            limits={k: int(v) for k, v in a.limits.items()},
            raw=a,
        )
        for i, a in enumerate(found)
    ]


def choose_adapter(adapters: Sequence[AdapterInfo], selector: str | None = None) -> AdapterInfo:
    """The adapter `selector` names (index, type, or part of the name), else the best one present.

    Without a selector `NVGPU_ADAPTER` counts, then discrete before integrated before CPU, then the lower index.

    Raises:
        NoAdapterError: nothing there, or nothing that matches; the message lists what is.
    """
    if not adapters:
        raise NoAdapterError(
            "no Vulkan, Metal or DX12 adapter found; on Debian or Ubuntu the software adapter is "
            "`apt-get install mesa-vulkan-drivers libvulkan1`"
        )
    selector = selector or os.environ.get("NVGPU_ADAPTER") or None
    matches = list(adapters)
    if selector is not None:
        wanted = selector.strip().lower()
        if wanted.isdecimal() and len(wanted) < 10:
            matches = [a for a in adapters if a.index == int(wanted)]
        elif wanted in _PREFERENCE:
            matches = [a for a in adapters if a.type == wanted]
        else:
            matches = [a for a in adapters if wanted in a.name.lower()]
        if not matches:
            raise NoAdapterError(
                f"adapter {selector!r}: no match; expected an index, a type ({', '.join(_PREFERENCE)}) or part of a name; "
                f"found {'; '.join(a.label for a in adapters)}"
            )
    return min(matches, key=lambda a: (_PREFERENCE.index(a.type), a.index))
