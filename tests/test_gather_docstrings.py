"""The calibration-text tool: what it takes, in which order, and that held-out text stays outside."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "gather_docstrings.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gather_docstrings", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def library(tmp_path, tool, monkeypatch):
    """A small library: four modules with text, one that cannot be parsed, one excluded folder."""
    root = tmp_path / "lib"
    for name, text in {
        "a.py": '"""Module a."""\ndef f():\n    """Function\n\n       of a.\n    """\nclass C:\n "Shared."\n',
        "b.py": 'class C:\n    """Shared."""\n    async def m(self):\n        "Method of b."\n',
        "bad.py": "def f(:\n",
        "c/__init__.py": '"""Package c."""\n',
        "c/d.py": '"""\\ud800 module d."""\n',
        "none.py": "x = 1\n",
        "test/t.py": '"""A test."""\n',
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(tool.sysconfig, "get_path", lambda _: str(root))
    return tmp_path


def test_takes_docstrings_in_order_once_and_skips_what_does_not_parse(tool, library, capsys):
    assert tool.main([str(library / "o.txt")]) == 0
    assert (library / "o.txt").read_text().split("\n\n") == [
        "Module a.", "Function", "of a.", "Shared.", "Method of b.", "Package c.", "? module d.", ""
    ]  # fmt: skip
    out = capsys.readouterr().out
    assert "6 texts of 4 modules" in out and "1 files could not be parsed" in out


def test_holdout_takes_whole_modules_and_shares_nothing(tool, library):
    options = ["--holdout", str(library / "h.txt"), "--holdout-percent", "50"]
    assert tool.main([str(library / "o.txt"), *options]) == 0
    held = (library / "h.txt").read_text()
    assert "Method of b." in held and "? module d." in held
    assert "Shared." not in held and "Method" not in (library / "o.txt").read_text()


def test_source_is_that_of_the_held_out_modules(tool, library):
    options = ["--holdout-source", str(library / "s.txt"), "--holdout-percent", "50"]
    assert tool.main([str(library / "o.txt"), *options]) == 0
    sources = [(library / "lib" / name).read_text() for name in ("b.py", "c/d.py")]
    assert (library / "s.txt").read_text() == "".join(text + "\n\n" for text in sources)
    assert "Method" not in (library / "o.txt").read_text()


def test_bound_cuts_between_docstrings(tool, library):
    assert tool.main([str(library / "o.txt"), "--max-bytes", "30"]) == 0
    assert (library / "o.txt").read_text() == "Module a.\n\nFunction\n\nof a.\n\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [(["--holdout-percent", "0"], "--holdout-percent 0"), (["--max-bytes", "0"], "--max-bytes 0"),
     (["--holdout", "o.txt"], "different files"),
     (["--holdout", "h.txt", "--holdout-source", "h.txt"], "different files")],
)  # fmt: skip
def test_options_that_cannot_work(tool, tmp_path, monkeypatch, capsys, args, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        tool.main(["o.txt", *args])
    assert stopped.value.code == 2 and said in capsys.readouterr().err


def test_unwritable_output_and_empty_library_are_one_line(tool, library, capsys):
    assert tool.main([str(library / "absent" / "o.txt")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert tool.main([str(library / "o.txt"), "--max-bytes", "1"]) == 1
    assert "no text" in capsys.readouterr().err
    assert sorted(p.name for p in library.iterdir()) == ["lib"]


def test_the_running_interpreters_library_is_enough_and_always_the_same(tmp_path):
    for name in ("1", "2"):
        command = [sys.executable, str(SCRIPT), name, "--holdout", name + "h"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert (tmp_path / "1").stat().st_size > 1_000_000
    assert (tmp_path / "1h").stat().st_size > 50_000
