// matmul_nn_acc: y += columns x0 .. x0 + M of x, times w
// bind 0  in     x      f32[N, lda]
// bind 1  in     w      f32[M, K]
// bind 2  inout  y      f32[N, K]
// grid    tiles of the result; the body is one of lib/gemm_*.wgsl
// alias   PIECE  what rows are stored in: vec4<f32>, or f32 where they are no whole vec4s
// numerics  f32 sums in the order of the contraction

@group(0) @binding(0) var<storage, read> x: array<PIECE>;
@group(0) @binding(1) var<storage, read> w: array<PIECE>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/gemm_io.wgsl
//!include lib/scale_none.wgsl
