// sign_grad: y_nk = cin_n cout_k Σ_m x_mn w_mk, the gradient of a matrix of signs from N rows of activations
// bind 0  in   x     f32[M, N]
// bind 1  in   w     f32[M, K]
// bind 2  in   cin   f32[N]
// bind 3  in   cout  f32[K]
// bind 4  out  y     f32[N, K]
// grid    tiles of the result; the body is one of lib/gemm_*.wgsl
// alias   COLUMN, PIECE  what rows of x and of w are stored in: vec4<f32>, or f32 where they are no whole vec4s
// numerics  f32 sums in the order of the contraction

@group(0) @binding(0) var<storage, read> x: array<COLUMN>;
@group(0) @binding(1) var<storage, read> w: array<PIECE>;
@group(0) @binding(2) var<storage, read> cin: array<f32>;
@group(0) @binding(3) var<storage, read> cout: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

fn input_factor(row: u32) -> f32 {
    return cin[row];
}
