"""Every op against its float64 reference, on the machine's adapter: as it is, without shader-f16, at default limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nvgpu.gpu import Device, open_device
from nvgpu.ops import OPS
from nvgpu.ops.parity import check, fits
from nvgpu.ops.table import Case, Kernel, Op

CONFIGURATIONS = ("as-is", "no-f16", "default-limits")


@pytest.fixture(scope="module")
def configured(request: pytest.FixtureRequest) -> Iterator[Device]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "no-f16":
            patch.setenv("NVGPU_FEATURES", "-shader-f16,-subgroup")
        device = open_device(default_limits=request.param == "default-limits")
    yield device
    device.close()


def _runs(quick: bool) -> list[object]:
    """Every case of every kernel as is; where less is granted, a kernel's text is the same: a third of its cases."""
    runs: list[object] = []
    for name in CONFIGURATIONS:
        for op in OPS.values():
            for kernel in op.kernels:
                cases = [case for case in op.cases if case.quick == quick and fits(op, kernel, case)]
                chosen = cases if name == "as-is" or not quick else [*cases[:-1:3], *cases[-1:]]
                runs += [
                    pytest.param(name, op, kernel, case, id=f"{name}-{op.name}.{kernel.name}-{case.name}")
                    for case in chosen
                ]
    return runs


@pytest.mark.parametrize(("configured", "op", "kernel", "case"), _runs(quick=True), indirect=["configured"])
def test_parity(configured: Device, op: Op, kernel: Kernel, case: Case) -> None:
    if not kernel.runs_on(configured):
        pytest.skip(f"kernel {kernel.name} needs {kernel.needs}")
    check(configured, op, kernel, case)


@pytest.mark.gpu
@pytest.mark.parametrize(("configured", "op", "kernel", "case"), _runs(quick=False), indirect=["configured"])
def test_parity_at_model_size(configured: Device, op: Op, kernel: Kernel, case: Case) -> None:
    if not kernel.runs_on(configured):
        pytest.skip(f"kernel {kernel.name} needs {kernel.needs}")
    check(configured, op, kernel, case)
