// rms_norm_fwd: y = x * rstd * w, or * (1 + w) in the gemma style; one workgroup per row
// bind 0  in   x     f32[N, C]
// bind 1  in   w     f32[C]
// bind 2  out  y     f32[N, C]
// bind 3  out  rstd  f32[N]      kept for rms_norm_bwd
// const   WG  invocations per row, a power of two
// grid    N
// numerics  f32 sums in a fixed tree order

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read_write> rstd: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_sum.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_index(group, groups);
    if (row >= p.N) {
        return;
    }
    let base = row * p.C;
    var sum = 0.0;
    for (var c = lane; c < p.C; c += WG) {
        let v = x[base + c];
        sum += v * v;
    }
    let r = inverseSqrt(group_sum(sum, lane) / f32(p.C) + p.eps);
    if (lane == 0u) {
        rstd[row] = r;
    }
    let shift = f32(p.gemma);
    for (var c = lane; c < p.C; c += WG) {
        y[base + c] = x[base + c] * r * (shift + w[c]);
    }
}
