// qk_norm_rope_dw_partial: sums of the gain's gradient over P chunks of rows; one invocation per chunk and dimension
// bind 0  in   x        f32[N, H, D]
// bind 1  in   rstd     f32[N, H]
// bind 2  in   table    f32[T, half, 2]  cosine and sine; row n has position n % T
// bind 3  in   dy       f32[N, H, D]
// bind 4  out  partial  f32[P, D]
// const   WG  dimensions per workgroup
// grid    P * cdiv(D, WG)
// numerics  rows and heads are added in order

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> rstd: array<f32>;
@group(0) @binding(2) var<storage, read> table: array<f32>;
@group(0) @binding(3) var<storage, read> dy: array<f32>;
@group(0) @binding(4) var<storage, read_write> partial: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/unrotated.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let column_groups = (p.D + WG - 1u) / WG;
    let index = group_index(group, groups);
    let part = index / column_groups;
    let d = (index % column_groups) * WG + lane;
    if (part >= p.P || d >= p.D) {
        return;
    }
    var sum = 0.0;
    for (var row = part * p.chunk * p.H; row < min((part + 1u) * p.chunk, p.N) * p.H; row++) {
        sum += unrotated(row, d) * x[row * p.D + d] * rstd[row];
    }
    partial[part * p.D + d] = sum;
}
