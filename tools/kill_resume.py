#!/usr/bin/env python3
"""Kills a training run at random moments and resumes it: every resume must go on from the last complete state, and the end
must have the bytes of a run that nobody killed. With and without sign training.

python tools/kill_resume.py [--kills 25] [--seed 0] [--folder build/kill_resume]
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

TEMPORARY = ".nvgpu-*.tmp"  # as nvgpu.formats.files names what is not written whole yet
_START = re.compile(r"going on from step (\d+)")
_DEADLINE = 300.0  # seconds for a run to save a state, or to end


@dataclass
class Tally:
    """What the kills of one run met. wrong: what a resume did that it should not have done."""

    kills: int = 0
    during_a_save: int = 0
    before_a_state: int = 0
    starts: list[int] = field(default_factory=list)  # step that each resume went on from
    wrong: list[str] = field(default_factory=list)
    same_bytes: bool = False


class Run:
    """A training run of the command line, in a folder of its own."""

    def __init__(self, folder: Path, models: Path, text: Path, steps: int, more: list[str]) -> None:
        self.folder = folder
        self.state, self.output = folder / "state", folder / "out.cmf"
        self.state.mkdir(parents=True)
        small = {
            "--tokens": 32 * steps,
            "--window": 16,
            "--batch": 2,
            "--eval-windows": 2,
            "--eval-every": 10,
        }
        self.words = [
            *(
                sys.executable,
                "-m",
                "nvgpu",
                "train",
                str(models / "student.cmf"),
                str(models / "teacher.cmf"),
            ),
            *("--calib", str(text), *(str(word) for pair in small.items() for word in pair)),
            *("--topk", "4", *more),
        ]

    def start(self, output: Path, *more: str) -> subprocess.Popen[str]:
        command = [*self.words, "-o", str(output), *more]
        return subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def whole(self) -> bytes:
        """The output of the run without a state."""
        output = self.folder / "whole.cmf"
        process = self.start(output)
        _, told = process.communicate(timeout=_DEADLINE)
        if process.returncode:
            raise SystemExit(f"the run that nobody kills failed: {told}")
        return output.read_bytes()

    def saved(self) -> int | None:
        """Steps of the newest complete state."""
        steps = [int(path.name.removeprefix("step-")) for path in self.state.glob("step-*")]
        return max(steps, default=None)

    def resume(self) -> subprocess.Popen[str]:
        saving = ("--state-dir", str(self.state), "--state-every", "1", "--resume", str(self.state))
        return self.start(self.output, *saving)


def kill_once(run: Run, tally: Tally, chance: random.Random, longest: float) -> bool:
    """Resume, and kill it up to `longest` seconds after its first save of its own; False once it has ended before."""
    before, left = run.saved(), set(run.state.glob(TEMPORARY))
    process = run.resume()
    until = time.monotonic() + _DEADLINE
    early = chance.random() < 0.2  # some before anything is saved, or even restored
    while not early and process.poll() is None and run.saved() == before and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(chance.uniform(0.0, 2.0 if early else longest))
    ended = process.poll() is not None
    process.kill()
    _, told = process.communicate()
    _look_at(told, before, tally)
    if ended:
        if process.returncode:
            tally.wrong.append(f"a resume from step {before} failed: {told.strip()[-300:]}")
        return False
    tally.kills += 1
    tally.during_a_save += not left >= set(run.state.glob(TEMPORARY))
    tally.before_a_state += run.saved() == before
    return True


def _look_at(told: str, before: int | None, tally: Tally) -> None:
    """A resume that came so far must have said that it goes on from the newest state."""
    found = _START.search(told)
    if found is not None:
        tally.starts.append(int(found.group(1)))
        if tally.starts[-1] != before:
            tally.wrong.append(
                f"went on from step {tally.starts[-1]}, the newest complete state was {before}"
            )


def trial(run: Run, kills: int, seed: int) -> Tally:
    """Kill one run so many times, then let it end."""
    tally, chance, expected = Tally(), random.Random(seed), run.whole()
    while tally.kills < kills and not tally.wrong:
        if not kill_once(run, tally, chance, longest=0.5):
            break
    before, process = run.saved(), run.resume()
    _, told = process.communicate(timeout=_DEADLINE)
    _look_at(told, before, tally)
    if process.returncode:
        tally.wrong.append(f"the last resume failed: {told.strip()[-300:]}")
    tally.same_bytes = run.output.exists() and run.output.read_bytes() == expected
    return tally


def make_models(folder: Path) -> Path:
    """teacher.cmf and student.cmf of two small layers, and text.txt."""
    from nvgpu.encode.compress import CompressOptions, compress
    from nvgpu.formats.cmf import CmfFile
    from nvgpu.formats.hf import import_hf
    from tests.random_model import make_config, make_tensors, write_folder

    config = make_config()
    write_folder(folder / "hf", config, make_tensors(config, 1))
    import_hf(folder / "hf", folder / "teacher.cmf")
    with CmfFile.open(folder / "teacher.cmf") as model:
        compress(model, folder / "student.cmf", CompressOptions(4, "svid", paths=1))
    text = folder / "text.txt"
    text.write_text(" ".join(f"t{i % 97}" for i in range(20_000)))
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=25, help="kills of each run (25)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "kill_resume")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if folder.exists():
        parser.error(f"{folder} exists; give --folder, or delete it")
    folder.mkdir(parents=True)
    text, failed = make_models(folder), 0
    print(
        f"{'run':14} {'kills':>5} {'in a save':>9} {'no new state':>12} {'resumes':>7} {'from steps':>12}  same bytes"
    )
    for name, more in (("metric only", []), ("--train-signs", ["--train-signs"])):
        run = Run(folder / name.strip("-").replace(" ", "_"), folder, text, 4 * given.kills, more)
        found = trial(run, given.kills, given.seed)
        steps = f"{min(found.starts)} to {max(found.starts)}" if found.starts else "none"
        row = f"{found.kills:5} {found.during_a_save:9} {found.before_a_state:12} {len(found.starts):7} {steps:>12}"
        print(f"{name:14} {row}  {'yes' if found.same_bytes else 'NO'}", flush=True)
        for line in found.wrong:
            print(f"  {line}")
        failed += bool(found.wrong) or not found.same_bytes or found.kills < given.kills
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
