// qk_norm_rope_bwd: dx of y = rope(x * rstd * w), or * (1 + w); one workgroup per row and head
// bind 0  in   x      f32[N, H, D]
// bind 1  in   w      f32[D]
// bind 2  in   rstd   f32[N, H]
// bind 3  in   table  f32[T, half, 2]  cosine and sine; row n has position n % T
// bind 4  in   dy     f32[N, H, D]
// bind 5  out  dx     f32[N, H, D]
// const   WG  invocations per head, a power of two
// grid    N * H
// numerics  f32 sums in a fixed tree order
// see     qk_norm_rope_fwd.wgsl, qk_norm_rope_dw_partial.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> rstd: array<f32>;
@group(0) @binding(3) var<storage, read> table: array<f32>;
@group(0) @binding(4) var<storage, read> dy: array<f32>;
@group(0) @binding(5) var<storage, read_write> dx: array<f32>;
@group(0) @binding(6) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_sum.wgsl
//!include lib/unrotated.wgsl

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
    let shift = f32(p.gemma);
    var dot = 0.0;
    for (var d = lane; d < p.D; d += WG) {
        dot += unrotated(row, d) * (shift + w[d]) * x[base + d];
    }
    let pull = group_sum(dot, lane) * r * r / f32(p.D);
    for (var d = lane; d < p.D; d += WG) {
        dx[base + d] = r * (unrotated(row, d) * (shift + w[d]) - x[base + d] * pull);
    }
}
