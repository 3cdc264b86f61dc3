// rms_norm_bwd: dx of y = x * rstd * w, or * (1 + w) in the gemma style; one workgroup per row
// bind 0  in   x     f32[N, C]
// bind 1  in   w     f32[C]
// bind 2  in   rstd  f32[N]
// bind 3  in   dy    f32[N, C]
// bind 4  out  dx    f32[N, C]
// const   WG  invocations per row, a power of two
// grid    N
// numerics  f32 sums in a fixed tree order
// see     rms_norm_fwd.wgsl, rms_norm_dw_partial.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> rstd: array<f32>;
@group(0) @binding(3) var<storage, read> dy: array<f32>;
@group(0) @binding(4) var<storage, read_write> dx: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

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
    let r = rstd[row];
    let shift = f32(p.gemma);
    var dot = 0.0;
    for (var c = lane; c < p.C; c += WG) {
        dot += dy[base + c] * (shift + w[c]) * x[base + c];
    }
    let pull = group_sum(dot, lane) * r * r / f32(p.C);
    for (var c = lane; c < p.C; c += WG) {
        dx[base + c] = r * (dy[base + c] * (shift + w[c]) - x[base + c] * pull);
    }
}
