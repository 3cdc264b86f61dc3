// sign_matmul_nn_scaled_acc: y_nk += cout_k Σ_m x_nm cin_m s_mk from packed signs
// bind 0  in     x      f32[N, M]
// bind 1  in     cin    f32[M]
// bind 2  in     w      u32[M, W]
// bind 3  in     cout   f32[K]
// bind 4  inout  y      f32[N, K]
// grid    tiles of the result; the body is one of lib/gemm_*.wgsl
// alias   PIECE  what rows are stored in: vec4<f32>, or f32 where they are no whole vec4s
// alias   SCALES  what cin is stored in: vec4<f32> on matrix units, else f32
// numerics  f32 sums in the order of the contraction

@group(0) @binding(0) var<storage, read> x: array<PIECE>;
@group(0) @binding(1) var<storage, read> cin: array<SCALES>;
@group(0) @binding(2) var<storage, read> w: array<u32>;
@group(0) @binding(3) var<storage, read> cout: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

//!include lib/gemm_io.wgsl
//!include lib/scale_out.wgsl
