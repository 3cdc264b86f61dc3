"""The encoders by name: where signs and scales start from, and how they are refined.

Every method has the same interface, `solve` and `encode`. A new start is added to `STARTS` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nvgpu.encode.admm import admm_start
from nvgpu.encode.descent import refine
from nvgpu.encode.factors import Path, Problem, dense, normalise, round_to_f16
from nvgpu.encode.itq import itq_start
from nvgpu.encode.refit import refit
from nvgpu.encode.svid import svid_start
from nvgpu.errors import InputError

Start = Callable[[Problem], Path]

STARTS: dict[str, Start] = {
    "svid": svid_start,
    "svid-refit": svid_start,
    "itq": itq_start,
    "admm": admm_start,
}
AUTO = "auto"
DEFAULT_METHOD = "admm"  # what `auto` stands for: the lowest error of all, measured in docs/results.md
QUICK_METHOD = "itq"  # near it at a third of the time: good enough to compare numbers of paths
METHODS = (AUTO, *STARTS)
_MOST_RANKS = {
    "admm": 4
}  # starts that can use more ranks than min(m, n): times that; 4 are 8 bits per weight of a square


def resolved(method: str) -> str:
    """The method that a name stands for; raises InputError naming the known ones."""
    if method not in METHODS:
        raise InputError(f"--method {method}: unknown, expected one of {', '.join(METHODS)}")
    return DEFAULT_METHOD if method == AUTO else method


def most_ranks(method: str) -> int:
    """The most ranks that a method can use, in multiples of min(m, n)."""
    return _MOST_RANKS.get(resolved(method), 1)


def solve(problem: Problem, method: str, refine_signs: bool = True) -> list[Path]:
    """The paths in float64; a second one starts from what the finished first leaves, and both are finished together.

    `svid` is the plain construction. The others end with refits of the scales and, with `refine_signs`, descent on the signs.
    """
    start = STARTS[method]
    finish = _unfinished if method == "svid" else refine if refine_signs else refit
    paths = finish(problem, [start(replace(problem, paths=1))])
    if problem.paths == 2:
        rest = replace(problem, w=problem.w - dense(paths), paths=1, seed=problem.seed + 1)
        paths = finish(problem, [*paths, *finish(rest, [start(rest)])])
    return paths


def encode(name: str, problem: Problem, method: str, refine_signs: bool = True) -> list[Path]:
    """The paths as stored: normalised, then rounded to f16; raises InputError naming the tensor."""
    if not np.isfinite(problem.w).all():
        raise InputError(f"{name}: holds infinite or NaN weights")
    paths = [round_to_f16(normalise(path)) for path in solve(problem, resolved(method), refine_signs)]
    if not all(np.isfinite(s).all() for p in paths for s in (p.h, p.l, p.g)):
        raise InputError(f"{name}: scales overflow f16, its largest weight is {np.abs(problem.w).max():.3g}")
    return paths


def _unfinished(problem: Problem, paths: list[Path]) -> list[Path]:
    return paths
