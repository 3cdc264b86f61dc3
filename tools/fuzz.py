#!/usr/bin/env python3
"""Feeds mutated files to every reader: each must open or be refused with one of our errors.

python tools/fuzz.py [--count 20000] [--seed 1] [--format CMF] [--keep FOLDER]

Workers run apart from this process, so that a crash or a hang is counted and not suffered. A case fails where the reader
raises anything but our error type, dies, takes more than 2 s, or lets the resident memory grow by more than 64 MiB plus
10 times the file (Linux only). Failing files are written to --keep. Exit code 1 with any failure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

MOST_SECONDS = 2.0
MOST_GROWTH = 64 << 20
GROWTH_A_BYTE = 10
HANG_SECONDS = 20.0  # without a sign of life the worker is ended
_NUMBERS = (0, 1, 7, 8, 127, 128, 255, 256, 4096, 65535, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1)
_TOKENS = (
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"[]",
    b"{}",
    b'""',
    b"[[[[",
    b"\xff",
    b"1" * 40,
    b'"\\ud800"',
    b"NaN",
)


@dataclass
class Tally:
    """Counts of one format; `failures` are (case, kind, what)."""

    name: str
    cases: int = 0
    opened: int = 0
    refused: int = 0
    slowest: float = 0.0
    growth: int = 0
    failures: list[tuple[int, str, str]] = field(default_factory=list)


def mutated(seeds: list[bytes], focus: int, rng: random.Random) -> bytes:
    """One to six changes to a seed, most of them among its first `focus` bytes."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        change(data, min(focus, len(data)) if rng.random() < 0.8 else len(data), rng)
    return bytes(data)


def change(data: bytearray, limit: int, rng: random.Random) -> None:
    """Change `data` in place, somewhere before `limit`."""
    at = rng.randrange(max(limit, 1))
    kind = rng.randrange(9)
    if kind == 0 and data:
        data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at : at + 1] = bytes([rng.randrange(256)])
    elif kind in (2, 3):
        width = rng.choice((1, 2, 4, 8))
        at -= at % width
        number = rng.choice(_NUMBERS) + rng.choice((-1, 0, 0, 1))
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    elif kind == 4:
        del data[at : at + rng.choice((1, 2, 8, 64))]
    elif kind == 5:
        data[at:at] = data[at : at + rng.choice((1, 4, 56, 64))] or b"\0"
    elif kind == 6:
        token = rng.choice(_TOKENS)
        data[at : at + len(token)] = token
    elif kind == 7:
        other = rng.randrange(max(limit, 1))
        size = rng.choice((1, 4, 8, 56))
        data[at : at + size] = data[other : other + size]
    elif rng.random() < 0.3:
        del data[rng.randrange(len(data) + 1) :]
    else:
        digits = [i for i, b in enumerate(data[:limit]) if 48 <= b < 58]
        if digits:
            data[rng.choice(digits)] = rng.choice(b"0123456789-.e")


# ── in a worker ──


def case_data(target: object, seed: int, index: int) -> bytes:
    """The bytes of a case: the same on every machine."""
    rng = random.Random(f"{seed} {target.name} {index}")  # type: ignore[attr-defined]
    return mutated(target.seeds, target.focus, rng)  # type: ignore[attr-defined]


class Memory:
    """Growth of the resident set between `start` and `growth`, its peak included; 0 where /proc cannot tell."""

    def start(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._before = self._read("VmRSS")

    def growth(self) -> int:
        return max(self._read("VmHWM") - self._before, 0)

    @staticmethod
    def _read(key: str) -> int:
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
        except OSError:
            return 0
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(key)), 0)


def work(name: str, seed: int, begin: int, count: int) -> None:
    """Run cases; a line of JSON on standard output after each."""
    from bench.fuzz_targets import targets

    from nvgpu.errors import NvgpuError

    target = next(t for t in targets() if t.name == name)
    memory = Memory()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case"
        for index in range(begin, begin + count):
            data = case_data(target, seed, index)
            path.write_bytes(data)
            memory.start()
            began = time.perf_counter()
            kind, what = "opened", ""
            try:
                target.open(path)
            except NvgpuError:
                kind = "refused"
            except BaseException as e:
                kind, what = "exception", f"{type(e).__name__}: {str(e)[:200]}"
            seconds, growth = time.perf_counter() - began, memory.growth()
            if seconds > MOST_SECONDS:
                kind, what = "slow", f"{seconds:.1f} s"
            elif growth > MOST_GROWTH + GROWTH_A_BYTE * len(data):
                kind, what = "memory", f"{growth >> 20} MiB for a file of {len(data)} bytes"
            print(json.dumps([index, kind, what, seconds, growth]), flush=True)


# ── in the parent ──


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    """Lines of a worker's output; ends where it ends or is silent for too long."""
    import selectors

    assert process.stdout is not None
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    rest = b""
    patience = 10 * HANG_SECONDS  # imports and the first compilation
    while selector.select(patience):
        chunk = os.read(process.stdout.fileno(), 1 << 16)
        if not chunk:
            return
        patience = HANG_SECONDS
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in whole)
    process.kill()


def run(name: str, seed: int, count: int, errors: Path) -> Tally:
    """All cases of a format, with a new worker after each crash or hang."""
    tally = Tally(name)
    while tally.cases < count:
        words = [sys.executable, str(__file__), "--seed", str(seed), "--count", str(count - tally.cases)]
        words += ["--worker", name, "--begin", str(tally.cases)]
        with (
            errors.open("w") as log,
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True) as process,
        ):
            for line in lines_of(process):
                add(tally, *json.loads(line))
        if tally.cases < count:
            last = (errors.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
            tally.failures.append((tally.cases, "crash", f"exit {process.returncode}: {last[:200]}"))
            tally.cases += 1
            if sum(kind == "crash" for _, kind, _ in tally.failures) > 20:
                break
    return tally


def add(tally: Tally, index: int, kind: str, what: str, seconds: float, growth: int) -> None:
    """Count one case."""
    tally.cases = index + 1
    tally.slowest, tally.growth = max(tally.slowest, seconds), max(tally.growth, growth)
    if kind == "opened":
        tally.opened += 1
    elif kind == "refused":
        tally.refused += 1
    else:
        tally.failures.append((index, kind, what))


def keep(tally: Tally, seed: int, folder: Path) -> None:
    """Write the files of failed cases."""
    from bench.fuzz_targets import targets

    target = next(t for t in targets() if t.name == tally.name)
    folder.mkdir(parents=True, exist_ok=True)
    for index, _, _ in tally.failures:
        (folder / f"{tally.name.replace(' ', '_')}-{seed}-{index}").write_bytes(
            case_data(target, seed, index)
        )


def show(tally: Tally) -> None:
    """A row of the table."""
    row = (
        tally.name,
        tally.cases,
        tally.opened,
        tally.refused,
        len(tally.failures),
        f"{tally.slowest:.2f}",
        f"{tally.growth / 2**20:.1f}",
    )
    print(f"| {' | '.join(map(str, row))} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000, help="mutated files a format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", action="append", help="only this one (repeatable)")
    parser.add_argument("--keep", type=Path, help="folder for the files of failed cases")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of the table")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.seed, options.begin, options.count)
        return 0
    from bench.fuzz_targets import targets

    names = [t.name for t in targets()]
    unknown = [name for name in options.format or [] if name not in names]
    if unknown:
        parser.error(f"--format {unknown[0]!r}: expected one of {', '.join(names)}")
    if not options.json:
        print("| format | cases | opened | refused | failed | slowest (s) | memory growth (MiB) |")
        print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    tallies = []
    for name in options.format or names:
        with tempfile.TemporaryDirectory() as folder:
            tallies.append(run(name, options.seed, options.count, Path(folder) / "errors"))
        if not options.json:
            show(tallies[-1])
        if options.keep and tallies[-1].failures:
            keep(tallies[-1], options.seed, options.keep)
    if options.json:
        print(json.dumps([asdict(t) for t in tallies]))
    for tally in [] if options.json else tallies:
        for index, kind, what in tally.failures:
            print(f"{tally.name} case {index}: {kind}: {what}")
    return 1 if any(t.failures for t in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
