// sign_matmul_nt_colsum: the column sums of y·t over each 128 rows, y_nm = Σ_k x_nk cin_k s_mk from packed signs; y is not stored
// bind 0  in     x       f32[N, K]
// bind 1  in     cin     f32[K]
// bind 2  in     w       u32[M, W]
// bind 3  in     t       f32[N, M]
// bind 4  out    partial f32[cdiv(N,128), M]
// grid    tiles of the result; the body is lib/gemm_matrix.wgsl
// alias   PIECE  what rows are stored in: vec4<f32>
// numerics  f16 inputs and signs, f32 sums in the order of the contraction

@group(0) @binding(0) var<storage, read> x: array<PIECE>;
@group(0) @binding(1) var<storage, read> cin: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<u32>;
@group(0) @binding(3) var<storage, read> t: array<f32>;
@group(0) @binding(4) var<storage, read_write> partial: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

//!include lib/gemm_io_sum.wgsl
