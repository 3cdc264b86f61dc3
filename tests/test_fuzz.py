"""The fuzzer itself, with few cases: every reader takes them, and a reader that does not is caught."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "fuzz.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_reader_takes_mutated_files() -> None:
    words = [sys.executable, str(SCRIPT), "--count", "150", "--seed", "2", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tallies = json.loads(done.stdout)
    assert len(tallies) >= 6
    for tally in tallies:
        assert tally["cases"] == 150 and tally["failures"] == []
        assert 0 < tally["refused"] < 150 or tally["name"] == "top-k cache", tally


def test_cases_are_the_same_every_time(tool: ModuleType) -> None:
    seeds = [bytes(range(200)), b'{"a": 1}']
    first, second = ([tool.mutated(seeds, 64, random.Random(i)) for i in range(300)] for _ in range(2))
    assert first == second
    assert sum(data not in seeds for data in first) > 250


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("raise ValueError('odd')", "exception"),
        ("os.abort()", "crash"),
        ("time.sleep(2.2)", "slow"),
        ("len(bytearray(200 << 20))", "memory"),
    ],
)
def test_what_goes_wrong_is_counted(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, kind: str
) -> None:
    """A target whose reader misbehaves, in a worker started as the tool starts its own."""
    if kind == "memory" and not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs /proc/self/clear_refs")
    worker = tmp_path / "worker.py"
    worker.write_text(
        f"import importlib.util, os, sys, time, types\n"
        f"spec = importlib.util.spec_from_file_location('fuzz', {str(SCRIPT)!r})\n"
        f"fuzz = importlib.util.module_from_spec(spec)\n"
        f"sys.modules['fuzz'] = fuzz\n"
        f"spec.loader.exec_module(fuzz)\n"
        f"def misbehave(path):\n    {body}\n"
        f"target = types.SimpleNamespace(name='bad', seeds=[b'seed'], focus=4, open=misbehave)\n"
        f"import bench\n"
        f"bench.fuzz_targets = types.SimpleNamespace(targets=lambda: iter([target]))\n"
        f"sys.modules['bench.fuzz_targets'] = bench.fuzz_targets\n"
        f"sys.exit(fuzz.main())\n"
    )
    monkeypatch.setattr(tool, "__file__", str(worker))
    tally = tool.run("bad", 1, 2, tmp_path / "errors")
    assert [found for _, found, _ in tally.failures] == [kind, kind], tally
