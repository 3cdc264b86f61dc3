"""The report's charts as SVG texts, drawn with matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, product
from typing import Any

import numpy as np

_MOST_POINTS = 600  # of one curve; longer ones are drawn as means of neighbours
_COLOURS = ("#1f5fa8", "#c8551b", "#2a7f4f", "#8a4fa3", "#b8860b", "#4d7c8a", "#a33d5a", "#6b6b6b")
_DASHES = ("-", "--", ":")
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "nvgpu",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}

Curve = Sequence[tuple[float, float | None]]
"""(x, y) pairs; a y of None is not drawn."""


def lines(
    curves: Mapping[str, Curve],
    *,
    x: str = "step",
    y: str,
    log: bool = False,
    marks: bool = False,
    level: tuple[str, float] | None = None,
    faults: Sequence[float] = (),
) -> str:
    """Curves over x. `level`: a named horizontal line; `faults`: places on x that are marked."""

    def draw(axes: Any) -> None:
        looks = product(_DASHES, _COLOURS)
        for (name, curve), (dash, colour) in zip(curves.items(), cycle(looks), strict=False):
            look = {"color": colour, "linestyle": dash, "marker": "o" if marks else "", "markersize": 3.5}
            axes.plot(*_thinned(curve), label=name, **look)
        if level is not None:
            axes.axhline(level[1], color="#777777", linestyle="--", linewidth=1, label=level[0])
        if faults:
            axes.plot(
                list(faults),
                [0.02] * len(faults),
                "x",
                color="#b00020",
                label="skipped",
                transform=axes.get_xaxis_transform(),
            )
        if log:
            axes.set_yscale("log")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(axes.lines) > 1:
            _legend(axes)

    return _svg(draw, f"{y} over {x}", height=2.9 if len(curves) <= 4 else 3.7)


def two_scales(left: tuple[str, Curve], right: tuple[str, Curve], x: str = "step") -> str:
    """Two curves over x, each with its own axis."""

    def draw(axes: Any) -> None:
        other = axes.twinx()
        other.grid(False)
        other.spines["right"].set_visible(True)
        for side, (name, curve), colour, dash in (
            (axes, left, _COLOURS[0], "-"),
            (other, right, _COLOURS[1], "--"),
        ):
            side.plot(*_thinned(curve), color=colour, linestyle=dash)
            side.set_ylabel(name, color=colour)
            side.tick_params(axis="y", colors=colour)
            side.set_ylim(bottom=0)
            side.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
        axes.set_xlabel(x)
        axes.xaxis.get_major_locator().set_params(integer=True)

    return _svg(draw, f"{left[0]} and {right[0]} over {x}")


def bars(rows: Sequence[tuple[str, float]], *, x: str) -> str:
    """A horizontal bar a row, the first on top, with its value."""

    def draw(axes: Any) -> None:
        names, values = [name for name, _ in rows], [value for _, value in rows]
        drawn = axes.barh(range(len(rows)), values, color=_COLOURS[0], height=0.65)
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.bar_label(drawn, [f"{value:.3g}" for value in values], padding=3, fontsize=8.5)
        axes.margins(x=0.14)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x)

    return _svg(draw, x, height=1.0 + 0.26 * len(rows))


def _legend(axes: Any) -> None:
    """Inside where the curves leave room; below in columns where there are many."""
    if len(axes.lines) <= 4:
        axes.legend(loc="best")
    else:
        axes.figure.legend(loc="outside lower center", ncols=4)


def _thinned(curve: Curve) -> tuple[list[float], list[float]]:
    """At most `_MOST_POINTS` points: means over equal stretches."""
    points = np.array([(a, b) for a, b in curve if b is not None], np.float64).reshape(-1, 2)
    if len(points) > _MOST_POINTS:
        points = np.array([part.mean(axis=0) for part in np.array_split(points, _MOST_POINTS)])
    return points[:, 0].tolist(), points[:, 1].tolist()


def _svg(draw: Callable[[Any], None], label: str, height: float = 2.9) -> str:
    """A drawing of 5.4 inches' width, as an element to put into a page."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.4, height), layout="constrained")
        draw(figure.add_subplot())
        out = io.StringIO()
        unsaid = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=unsaid)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', _opening(label), text, count=1)


def _opening(label: str) -> str:
    names = 'xmlns:xlink="http://www.w3.org/1999/xlink" xmlns="http://www.w3.org/2000/svg"'
    return rf'<svg {names} viewBox="\1" role="img" aria-label="{label}">'
