"""Runs the PyTorch peer in an interpreter of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import click


def run_peer(python: str, *words: str) -> dict[str, Any]:
    """The object that `peer_torch.py WORDS --json` prints."""
    command = [python, str(Path(__file__).resolve().with_name("peer_torch.py")), *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(
            f"the peer failed: {done.stderr.strip().splitlines()[-1:] or done.returncode}"
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
