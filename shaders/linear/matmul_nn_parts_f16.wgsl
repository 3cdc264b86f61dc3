// matmul_nn_parts_f16: columns x0 .. x0 + M of x, times w from f16 weights, the contraction cut into P parts to be summed
// bind 0  in     x      f32[N, lda]
// bind 1  in     w      f16[M, K]
// bind 2  out    y      f32[P, N, K]
// const   PARTS  P
// grid    tiles of the result times parts; the body is lib/gemm_matrix.wgsl
// alias   PIECE  what rows are stored in: vec4<f32>
// numerics  f16 inputs, f32 sums in the order of the contraction

@group(0) @binding(0) var<storage, read> x: array<PIECE>;
@group(0) @binding(1) var<storage, read> w: array<HALF4>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/parts_many.wgsl
