#!/usr/bin/env python3
"""Size report: files over the line limit fail, functions over theirs are listed.

python tools/sizes.py [--verbose]
"""

from __future__ import annotations

import argparse
import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
SUFFIXES = (".py", ".wgsl")


@dataclass(frozen=True)
class Function:
    """One function of a file, with its decorators and docstring not counted."""

    path: str
    name: str
    line: int
    lines: int


def tracked_files(root: Path) -> list[Path]:
    """Files that git knows or would add, relative to `root`."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [Path(n) for n in sorted(set(filter(None, names))) if (root / n).is_file()]


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the `def` to the end, less the docstring."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        total -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    return total


def functions(path: str, source: str) -> Iterator[Function]:
    """Every function of one Python file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(path, node.name, node.lineno, body_lines(node))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verbose", action="store_true", help="list every file with its line count")
    options = parser.parse_args()
    sizes: dict[str, int] = {}
    found: list[Function] = []
    for path in tracked_files(ROOT):
        if path.suffix in SUFFIXES:
            source = (ROOT / path).read_text(encoding="utf-8")
            sizes[path.as_posix()] = len(source.splitlines())
            if path.suffix == ".py":
                found.extend(functions(path.as_posix(), source))
    if options.verbose:
        for name, lines in sorted(sizes.items(), key=lambda item: -item[1]):
            print(f"{lines:6d} {name}")
    for f in sorted(found, key=lambda f: -f.lines):
        if f.lines > MAX_FUNCTION_LINES:
            print(f"{f.path}:{f.line}: {f.name} has {f.lines} lines, more than {MAX_FUNCTION_LINES}")
    too_long = {name: lines for name, lines in sizes.items() if lines > MAX_FILE_LINES}
    for name, lines in too_long.items():
        print(f"{name}: {lines} lines, more than {MAX_FILE_LINES}", file=sys.stderr)
    median = statistics.median([f.lines for f in found] or [0])
    print(f"{len(sizes)} files, {sum(sizes.values())} lines; {len(found)} functions, median {median:g} lines")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
