"""`nvgpu devices`: what the machine has, what is used, and why."""

from __future__ import annotations

import os
import platform
from typing import Any

import click

from nvgpu import __version__
from nvgpu.cli.check_device import gemm_rates, quick_parity
from nvgpu.cli.common import adapter_option, command, json_option, print_json
from nvgpu.cli.console import print_table, printable, stderr
from nvgpu.gpu import AdapterInfo, Device, choose_adapter, list_adapters, open_device
from nvgpu.gpu.device import OPTIONAL_FEATURES

_LIMITS = (
    "max-storage-buffer-binding-size",
    "max-buffer-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
)


@command("devices")
@click.option(
    "--check",
    is_flag=True,
    help="Run the quick parity set and GEMM rates on the chosen adapter; prints a block to paste into a report.",
)
@adapter_option
@json_option
@click.pass_context
def devices(ctx: click.Context, check: bool, adapter: str | None, as_json: bool) -> None:
    """List the adapters, the one in use, and the features it grants."""
    adapters = list_adapters()
    chosen = choose_adapter(adapters, adapter)
    device = open_device(str(chosen.index))
    report: dict[str, Any] = {
        "nvgpu": __version__,
        "platform": platform.platform(),
        "adapters": [
            {"index": a.index, "name": a.name, "type": a.type, "backend": a.backend, "driver": a.driver}
            for a in adapters
        ],
        "used": chosen.index,
        "why": _why(chosen, adapter),
        "features": {name: _feature(device, name) for name in OPTIONAL_FEATURES},
        "limits": {name: device.limits[name] for name in _LIMITS},
    }
    failures: list[str] = []
    if check:
        count, failures, used = quick_parity(device, stderr())
        report["parity"] = {"cases": count, "failures": failures, "largest_share_of_tolerance": used}
        report["gemm_gflops"] = gemm_rates(device)
    if as_json:
        print_json(report)
    else:
        _print(report)
    if failures:
        ctx.exit(1)


def _why(chosen: AdapterInfo, selector: str | None) -> str:
    if selector:
        return f"--adapter {selector}"
    if named := os.environ.get("NVGPU_ADAPTER"):
        return f"NVGPU_ADAPTER={named}"
    return f"the first {chosen.type} one; discrete goes before integrated before cpu"


def _feature(device: Device, name: str) -> str:
    if name in device.features:
        return "used"
    return device.refused.get(name, "not offered by the adapter")


def _print(report: dict[str, Any]) -> None:
    rows = [
        [
            f"{a['index']}{' (used)' if a['index'] == report['used'] else ''}",
            a["name"],
            a["type"],
            a["backend"],
            a["driver"],
        ]
        for a in report["adapters"]
    ]
    print_table(
        f"nvgpu {report['nvgpu']} on {report['platform']}",
        ["adapter", "name", "type", "backend", "driver"],
        rows,
    )
    click.echo(printable(f"adapter {report['used']} is used: {report['why']}"))
    print_table("", ["feature", "state"], [[k, v] for k, v in report["features"].items()])
    print_table("", ["limit", "value"], [[k, str(v)] for k, v in report["limits"].items()])
    if "parity" in report:
        parity = report["parity"]
        verdict = "all pass" if not parity["failures"] else f"{len(parity['failures'])} FAIL"
        rows = [
            ["parity", f"{parity['cases']} cases, {verdict}"],
            ["largest share of a tolerance", f"{parity['largest_share_of_tolerance']:.2f}"],
        ]
        rows += [[f"GEMM {name} (GFLOP/s)", f"{rate:.1f}"] for name, rate in report["gemm_gflops"].items()]
        print_table("check", ["", ""], rows)
        for line in parity["failures"]:
            click.echo(printable(line))
