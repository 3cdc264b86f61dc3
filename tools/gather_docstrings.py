#!/usr/bin/env python3
"""Writes the docstrings of the Python standard library to a text file: calibration text without a download.

    python tools/gather_docstrings.py calib.txt --holdout eval.txt

Modules are taken in sorted order and a docstring that occurs twice is written once, so one interpreter always
gives the same bytes. With --holdout every k-th module goes to the second file: no docstring is in both. --holdout-source
writes the source code of the held-out modules.
Needs nothing but the interpreter's own library.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# third-party code, tests, and code whose text is generated or not prose; absent on some systems or versions
EXCLUDED = {
    "__phello__", "__pycache__", "dist-packages", "ensurepip", "idle_test", "idlelib", "lib2to3",
    "pydoc_data", "site-packages", "test", "tests", "turtledemo",
}  # fmt: skip
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
SEPARATOR = "\n\n"


@dataclass
class Sink:
    """The docstrings of one output file, up to a number of UTF-8 bytes."""

    max_bytes: int | None
    texts: list[str] = field(default_factory=list)
    modules: int = 0
    nbytes: int = 0

    def add(self, texts: list[str]) -> None:
        """Appends the texts of one module; stops before the first one that would exceed the bound."""
        taken = 0
        for text in texts:
            size = len((text + SEPARATOR).encode())
            if self.max_bytes is not None and self.nbytes + size > self.max_bytes:
                self.max_bytes = self.nbytes
                break
            self.texts.append(text)
            self.nbytes += size
            taken += 1
        self.modules += taken > 0


def module_files(root: Path) -> list[Path]:
    """The library's .py files in sorted order of their path inside `root`, excluded folders left out."""
    found = (p.relative_to(root) for p in root.rglob("*.py"))
    return [root / p for p in sorted(found, key=lambda p: p.parts) if not EXCLUDED.intersection(p.parts)]


def docstrings(source: bytes) -> Iterator[str]:
    """The cleaned docstrings of a module, its classes and its functions, in the order of the text."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    for node in sorted(nodes, key=lambda n: getattr(n, "lineno", 0)):
        text = ast.get_docstring(node, clean=False)
        if text and (text := inspect.cleandoc(text).strip()):
            yield text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written


@dataclass(frozen=True)
class Module:
    """A module with docstrings that no module before it has."""

    path: Path
    source: bytes
    texts: list[str]
    held_out: bool


def modules(root: Path, every: int | None) -> tuple[list[Module], int]:
    """The library's modules that have text, every `every`-th held out; and the number of files that could not be parsed."""
    found: list[Module] = []
    seen: set[str] = set()
    skipped = 0
    for path in module_files(root):
        try:
            source = path.read_bytes()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                texts = list(dict.fromkeys(docstrings(source)))
        except (SyntaxError, ValueError, RecursionError, OSError):
            skipped += 1
            continue
        texts = [t for t in texts if t not in seen]
        seen.update(texts)
        if texts:
            held_out = every is not None and (len(found) + 1) % every == 0
            found.append(Module(path, source, texts, held_out))
    return found, skipped


def write_text(path: Path, sink: Sink) -> None:
    """Writes under a temporary name in the same folder and renames; nothing is left behind on failure."""
    fd, name = tempfile.mkstemp(prefix=path.name + ".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(text + SEPARATOR for text in sink.texts)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Parses and checks the options; exits with code 2 and one line naming the option that cannot work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT.txt", help="file for the docstrings")
    parser.add_argument("--holdout", type=Path, metavar="OUT2.txt", help="second file, for every k-th module")
    parser.add_argument(
        "--holdout-source", type=Path, metavar="OUT3.txt", help="third file, for these modules' source code"
    )
    parser.add_argument(
        "--holdout-percent", type=float, default=10.0, metavar="P",
        help="share of the modules that goes to the second file, k = round(100 / P) (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-bytes", type=int, metavar="N", help="bound on the size of each file (default: none)"
    )
    args = parser.parse_args(argv)
    if not 0 < args.holdout_percent <= 50:
        parser.error(f"--holdout-percent {args.holdout_percent:g}: more than 0 and at most 50 expected")
    if args.max_bytes is not None and args.max_bytes < 1:
        parser.error(f"--max-bytes {args.max_bytes}: a positive number expected")
    paths = [path.resolve() for path in (args.out, args.holdout, args.holdout_source) if path is not None]
    if len(set(paths)) < len(paths):
        parser.error("OUT.txt, --holdout and --holdout-source: different files expected")
    return args


def main(argv: list[str] | None = None) -> int:
    """Runs the tool; returns the exit code."""
    args = parse_args(argv)
    root = Path(sysconfig.get_path("stdlib"))
    splits = args.holdout is not None or args.holdout_source is not None
    found, skipped = modules(root, round(100 / args.holdout_percent) if splits else None)
    calib, holdout, source = (Sink(args.max_bytes) for _ in range(3))
    for module in found:
        (holdout if module.held_out else calib).add(module.texts)
        if module.held_out:
            source.add([module.source.decode("utf-8", "replace")])
    for path, sink in ((args.out, calib), (args.holdout, holdout), (args.holdout_source, source)):
        if path is None:
            continue
        if not sink.texts:
            print(f"error: {root}: no text for {path}", file=sys.stderr)
            return 1
        try:
            write_text(path, sink)
        except OSError as e:
            print(f"error: {path}: cannot be written: {e.strerror}", file=sys.stderr)
            return 1
        print(f"{path}: {len(sink.texts)} texts of {sink.modules} modules, {sink.nbytes} bytes")
    if skipped:
        print(f"{skipped} files could not be parsed and were skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
