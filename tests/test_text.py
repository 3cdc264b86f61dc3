"""What the repository's files say: paths that exist, no paths of one machine, sizes, tools that answer."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import nvgpu

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_BYTES = 10 << 20
TEXT_SUFFIXES = (".py", ".wgsl", ".md", ".toml", ".yml", ".yaml", ".cfg", "")
FOLDERS = ("nvgpu", "shaders", "tools", "tests", "docs", "examples", r"\.ci")

# a path from the repository's root; not the middle of a longer path or address
_MENTION = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./-]*")
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
_MACHINE = re.compile(r"(?<![\w.)}])/(?:work|root|home|Users|tmp/t?venv|tmp/w)(?:/|\b(?![-\w]))")
_UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b")


@cache
def tracked() -> tuple[Path, ...]:
    """Files that git knows or would add."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return tuple(ROOT / n for n in sorted(set(filter(None, names))) if (ROOT / n).is_file())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_files() -> list[Path]:
    examples = ROOT / "examples"
    return [p for p in tracked() if p.suffix in TEXT_SUFFIXES and examples not in p.parents]


def lines_that(pattern: re.Pattern[str]) -> list[str]:
    """Where `pattern` stands in the repository's texts, as file:line: line."""
    return [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def mentions(text: str) -> list[str]:
    """Repository paths that a text names."""
    return [m.group().rstrip("./") for m in _MENTION.finditer(text)]


# ── documents ──


def documents() -> list[Path]:
    return [p for p in tracked() if p.suffix == ".md"]


@pytest.mark.parametrize("path", documents(), ids=relative)
def test_mentioned_paths_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    missing = [m for m in mentions(text) if not (ROOT / m).exists()]
    missing += [link for link in _LINK.findall(text) if not (path.parent / link).exists()]
    assert missing == []


def test_mentions_are_found() -> None:
    text = (
        "see `nvgpu/gpu/device.py`, tools/test, docs/math/; not https://a.org/docs/x, ../tools/y, x-tools/z"
    )
    assert mentions(text) == ["nvgpu/gpu/device.py", "tools/test", "docs/math"]


def test_readme_maps_the_code() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    parts = [p.name for p in sorted((ROOT / "nvgpu").iterdir()) if p.is_dir() and any(p.glob("*.py"))]
    missing = [name for name in parts if not re.search(rf"\b{name}/", text)]
    assert missing == []


def test_changelog_has_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(nvgpu.__version__)}\]", text, re.M)


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    names = {re.split(r"[<>=!~ \[]", requirement)[0] for requirement in wanted}
    explained = re.findall(
        r"^\| (\w[\w-]*) \|", (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8"), re.M
    )
    assert names == set(explained) - {"package", "hatchling"}


# ── every text ──


def test_no_path_of_one_machine() -> None:
    assert lines_that(_MACHINE) == []


def test_machine_paths_are_found() -> None:
    slash = "/"
    for bad in ("work/main/x", "root/.cache", "home/someone", "tmp/w/notes", "tmp/venv/bin", "Users/someone"):
        assert _MACHINE.search(f"open('{slash}{bad}')"), bad
    for good in ("a/work/b", "tmp/file", "network", "workgroup", "homework/x", "$ROOT/root/x"):
        assert not _MACHINE.search(good), good


def test_nothing_unfinished() -> None:
    assert lines_that(_UNFINISHED) == []


def test_no_trailing_space() -> None:
    assert lines_that(re.compile(r"[ \t]+$")) == []


def test_no_large_file() -> None:
    assert [relative(p) for p in tracked() if p.stat().st_size > MAX_FILE_BYTES] == []


# ── tools ──


def tools() -> list[Path]:
    return [
        p
        for p in tracked()
        if relative(p).startswith(("tools/", ".ci/")) and p.parent.name in ("tools", ".ci")
    ]


@pytest.mark.parametrize("path", tools(), ids=relative)
def test_tool_answers(path: Path) -> None:
    """Python tools print help without their heavy dependencies; shell tools parse."""
    if path.suffix == ".py":
        done = subprocess.run(
            [sys.executable, str(path), "--help"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert "usage:" in done.stdout.lower()
    else:
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["quickstart", "test", "check"])
def test_shell_tool_has_help(name: str) -> None:
    done = subprocess.run([ROOT / "tools" / name, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: tools/{name}")


def test_size_report_passes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "sizes.py")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
