// gated_rms_norm_fwd: y = x * rstd * w * silu(z) per head; one workgroup per row and head
// bind 0  in   x     f32[N, H, D]
// bind 1  in   w     f32[D]
// bind 2  in   z     f32[N, H, D]
// bind 3  out  y     f32[N, H, D]
// bind 4  out  rstd  f32[N, H]     kept for gated_rms_norm_bwd
// const   WG  invocations per head, a power of two
// grid    N * H
// numerics  f32 sums in a fixed tree order

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> z: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read_write> rstd: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_sum.wgsl
//!include lib/sigmoid.wgsl
alias PIECE = f32;  // of lib/sigmoid.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_index(group, groups);
    if (row >= p.rows) {
        return;
    }
    let base = row * p.D;
    var sum = 0.0;
    for (var d = lane; d < p.D; d += WG) {
        let v = x[base + d];
        sum += v * v;
    }
    let r = inverseSqrt(group_sum(sum, lane) / f32(p.D) + p.eps);
    if (lane == 0u) {
        rstd[row] = r;
    }
    for (var d = lane; d < p.D; d += WG) {
        y[base + d] = x[base + d] * r * w[d] * silu(z[base + d]);
    }
}
