"""Imports go down only, and each part of the package uses only the third-party packages that are its own."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "nvgpu"
NUMERIC = frozenset({"numpy", "numba"})


@dataclass(frozen=True)
class Part:
    """What one part of the package may import beside itself and the standard library."""

    parts: frozenset[str]
    third_party: frozenset[str] = NUMERIC


def part(*parts: str, plus: tuple[str, ...] = ()) -> Part:
    return Part(frozenset({"errors", "progress", *parts}), NUMERIC | frozenset(plus))


BELOW_LAYERS = ("ops", "gpu", "ref")
BELOW_MODEL = ("layers", *BELOW_LAYERS)
BELOW_JOBS = ("model", "formats", *BELOW_MODEL)
JOBS = ("train", "heal", "fcd", "encode")
PARTS = {
    "errors": Part(frozenset(), frozenset()),
    "progress": Part(frozenset(), frozenset()),
    "ref": part(),
    "gpu": part(plus=("wgpu", "platformdirs")),
    "formats": part(plus=("tokenizers", "jinja2", "cryptography")),
    "ops": part("gpu", "ref"),
    "layers": part(*BELOW_LAYERS),
    "model": part(*BELOW_MODEL, "formats"),
    **{job: part(*BELOW_JOBS) for job in JOBS},
    "train": part(*BELOW_JOBS, plus=("jinja2", "matplotlib", "tensorboardX")),
    "cli": part(*JOBS, *BELOW_JOBS, plus=("click", "rich")),
    "__init__": part(*JOBS, *BELOW_JOBS),
    "__main__": part("cli"),
}
FROM_ROOT = frozenset({"__version__"})  # the only name any part may take from the package itself


def imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that a module of `package` imports, wherever in its text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            argument = node.args[0]
            if name in ("import_module", "__import__") and isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value)


def violations(where: str, source: str) -> list[str]:
    """What the module at `where`, such as `ops/table.py`, imports against the rules."""
    path = Path(where)
    name = path.parts[0].removesuffix(".py")
    if name not in PARTS:
        return [f"{where}: part {name!r} has no place in the import rules"]
    rules = PARTS[name]
    found = []
    for line, target in imported(ast.parse(source), ("nvgpu", *path.parent.parts)):
        top, *rest = target.split(".")
        if top == "nvgpu":
            inner = rest[0] if rest else ""
            allowed = inner == name or inner in rules.parts or inner in FROM_ROOT
        else:
            allowed = top in sys.stdlib_module_names or top in rules.third_party
        if not allowed:
            found.append(f"{where}:{line}: {name} must not import {target}")
    return found


def modules() -> list[str]:
    return sorted(p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("where", modules())
def test_imports_go_down_only(where: str) -> None:
    assert violations(where, (PACKAGE / where).read_text(encoding="utf-8")) == []


def test_rules_name_the_dependencies() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(r for extra in ("sign", "tensorboard") for r in project["optional-dependencies"][extra]),
    ]
    through = {"scipy"}  # numba needs it, nvgpu does not import it
    names = {re.split(r"[<>=!~ \[]", requirement)[0] for requirement in wanted} - through
    assert frozenset[str]().union(*(p.third_party for p in PARTS.values())) == names


def test_rules_have_no_cycle() -> None:
    order: list[str] = []
    while len(order) < len(PARTS):
        free = [n for n, p in PARTS.items() if n not in order and p.parts & PARTS.keys() <= set(order)]
        assert free, f"a cycle among {sorted(PARTS.keys() - set(order))}"
        order += free


ALLOWED = [
    (
        "ref/norm.py",
        "import numpy as np\nfrom numba import njit\nimport math\nfrom nvgpu.errors import InputError",
    ),
    (
        "ref/norm.py",
        "from nvgpu.ref.elementwise import add\nfrom . import head\nfrom .elementwise import add",
    ),
    ("gpu/device.py", "def f():\n    import wgpu.backends.wgpu_native"),
    ("formats/hf.py", "from tokenizers import Tokenizer"),
    ("model/net.py", "from nvgpu.formats.cmf import CmfFile\nfrom nvgpu.layers import mlp"),
    ("train/export.py", "from nvgpu import __version__\nfrom ..formats import cmf"),
    ("cli/main.py", "import click\nfrom rich.table import Table\nfrom nvgpu.train import loop"),
    ("errors.py", "import enum"),
]


@pytest.mark.parametrize(("where", "source"), ALLOWED)
def test_checker_lets_good_imports_pass(where: str, source: str) -> None:
    assert violations(where, source) == []


REFUSED = [
    ("layers/mlp.py", "import wgpu"),
    ("ops/table.py", "def f():\n    import wgpu.utils"),
    ("gpu/device.py", "from nvgpu.ops import OPS"),
    ("gpu/device.py", "from nvgpu import ops"),
    ("gpu/device.py", "import nvgpu.ref.norm"),
    ("ref/norm.py", "from ..gpu import open_device"),
    ("ref/norm.py", "from .. import gpu"),
    ("ref/norm.py", "import scipy.linalg"),
    ("formats/cmf.py", "from nvgpu.model.geometry import Geometry"),
    ("formats/hf.py", "import click"),
    ("formats/hf.py", "import safetensors.numpy"),
    ("ops/linear.py", "from nvgpu.layers import linear"),
    ("ops/linear.py", "from nvgpu.formats import codecs"),
    ("layers/mlp.py", "import importlib\nimportlib.import_module('nvgpu.model')"),
    ("model/net.py", "from nvgpu.train import loop"),
    ("train/loop.py", "from nvgpu.encode import svid"),
    ("train/loop.py", "import click"),
    ("train/loop.py", "if True:\n    import torch"),
    ("train/loop.py", "import nvgpu"),
    ("cli/main.py", "import transformers"),
    ("errors.py", "import numpy"),
    ("utils.py", ""),
    ("misc/thing.py", ""),
]


@pytest.mark.parametrize(("where", "source"), REFUSED)
def test_checker_refuses(where: str, source: str) -> None:
    assert len(violations(where, source)) == 1


def test_package_is_seen() -> None:
    assert {"__init__.py", "errors.py", "gpu/__init__.py", "ops/table.py"} <= set(modules())
