"""An RMSNorm gain and its gradient."""

from __future__ import annotations

from dataclasses import dataclass

from nvgpu.gpu import Buffer


@dataclass(frozen=True)
class Gain:
    """`g` accumulates; it is None where nothing trains."""

    w: Buffer  # [C]
    g: Buffer | None  # [C]
