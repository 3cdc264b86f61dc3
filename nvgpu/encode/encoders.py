"""The encoders by name, and the one step every one of them shares: from a matrix to scales ready for f16.

An encoder is a function from `Problem` to paths. A new one is added to `ENCODERS` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nvgpu.encode.factors import Path, Problem, normalise, round_to_f16
from nvgpu.encode.svid import svid, svid_refit
from nvgpu.errors import InputError

Encoder = Callable[[Problem], list[Path]]

ENCODERS: dict[str, Encoder] = {"svid": svid, "svid-refit": svid_refit}
DEFAULT_METHOD = "svid-refit"


def encoder(method: str) -> Encoder:
    """The encoder of that name; raises InputError naming the known ones."""
    if method not in ENCODERS:
        raise InputError(f"--method {method}: unknown, expected one of {', '.join(ENCODERS)}")
    return ENCODERS[method]


def encode(name: str, problem: Problem, method: str) -> list[Path]:
    """The paths as stored: normalised, then rounded to f16; raises InputError naming the tensor."""
    if not np.isfinite(problem.w).all():
        raise InputError(f"{name}: holds infinite or NaN weights")
    paths = [round_to_f16(normalise(path)) for path in encoder(method)(problem)]
    if not all(np.isfinite(s).all() for p in paths for s in (p.h, p.l, p.g)):
        raise InputError(f"{name}: scales overflow f16, its largest weight is {np.abs(problem.w).max():.3g}")
    return paths
