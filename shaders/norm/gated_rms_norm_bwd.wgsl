// gated_rms_norm_bwd: dx and dz of y = x * rstd * w * silu(z) per head; one workgroup per row and head
// bind 0  in   x     f32[N, H, D]
// bind 1  in   w     f32[D]
// bind 2  in   z     f32[N, H, D]
// bind 3  in   rstd  f32[N, H]
// bind 4  in   dy    f32[N, H, D]
// bind 5  out  dx    f32[N, H, D]
// bind 6  out  dz    f32[N, H, D]
// const   WG  invocations per head, a power of two
// grid    N * H
// numerics  f32 sums in a fixed tree order
// see     gated_rms_norm_fwd.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> z: array<f32>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read> dy: array<f32>;
@group(0) @binding(5) var<storage, read_write> dx: array<f32>;
@group(0) @binding(6) var<storage, read_write> dz: array<f32>;
@group(0) @binding(7) var<uniform> p: Params;

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
    let r = rstd[row];
    var dot = 0.0;
    for (var d = lane; d < p.D; d += WG) {
        let i = base + d;
        dot += dy[i] * w[d] * silu(z[i]) * x[i];
    }
    let pull = group_sum(dot, lane) * r * r / f32(p.D);
    for (var d = lane; d < p.D; d += WG) {
        let i = base + d;
        dx[i] = r * (dy[i] * w[d] * silu(z[i]) - x[i] * pull);
        dz[i] = dy[i] * x[i] * r * w[d] * dsilu(z[i]);
    }
}
