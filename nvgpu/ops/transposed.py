"""GEMMs with a transposed input: products of activations summed over their rows."""

from __future__ import annotations

import numpy as np

from nvgpu.ops.linear import BODIES
from nvgpu.ops.table import In, InOut, Kernel, Op, case, full_case
from nvgpu.ops.tolerance import matmul
from nvgpu.ref import linear as ref


def transposed_kernels(shader: str, scale: str, *, acc: bool) -> tuple[Kernel, ...]:
    """The portable kernels of y [N, K] from x [M, N] and w [M, K], both f32."""
    libs = {"tiles": ("tile_nn", "gemm_tiles"), "registers": ("block_nn", "gemm_registers")}
    return tuple(
        Kernel(
            f"{body}-{name}",
            shader,
            grid=grid.format(outer="K"),
            consts={"ACC": acc, **consts},
            aliases={"COLUMN": "f32", "PIECE": piece},
            libs=tuple(
                f"lib/{lib}.wgsl"
                for lib in ("gemm_io", scale, "input_t", f"weights_f32_{width}", *libs[body])
            ),
            when=when,
            fits=fits,
        )
        for body, (when, grid, consts) in BODIES.items()
        for name, width, piece, fits in (("vec4", 4, "vec4<f32>", "K % 4 == 0"), ("scalar", 1, "f32", "True"))
    )


matmul_tn_acc = Op(
    "matmul_tn_acc",
    "y += xᵀ · w: summed over rows of activations; a Gram matrix where x is w",
    args=(In("x", "f32", "M N"), In("w", "f32", "M K"), InOut("y", "f32", "N K")),
    params="N M K inner=M outer=K ldy=K y0=0",
    kernels=transposed_kernels("linear/matmul_tn_acc.wgsl", "scale_none", acc=True),
    ref=lambda a, d: {"y": a["y"].astype(np.float64) + ref.matmul_tn(a["x"], a["w"])},
    backward="none: statistics of activations need no gradient",
    tol=matmul("M + 1"),
    flops="2 * N * M * K",
    mag=lambda a, d: {"y": np.abs(a["y"]) + ref.matmul_tn(np.abs(a["x"]), np.abs(a["w"]))},
    cases=(
        case(N=1, M=1, K=1),
        case(N=7, M=5, K=3),
        case(N=67, M=37, K=130),
        case(N=64, M=65, K=64),
        case(N=68, M=63, K=132),
        case(N=129, M=127, K=260),
        full_case(N=3584, M=4096, K=3584),
    ),
)
