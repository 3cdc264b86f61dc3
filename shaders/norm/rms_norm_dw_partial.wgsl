// rms_norm_dw_partial: sums of dy * x * rstd over P chunks of rows; one invocation per chunk and column
// bind 0  in   x        f32[N, C]
// bind 1  in   rstd     f32[N]
// bind 2  in   dy       f32[N, C]
// bind 3  out  partial  f32[P, C]
// const   WG  columns per workgroup
// grid    P * cdiv(C, WG)
// numerics  rows are added in order

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> rstd: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read_write> partial: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

//!include lib/group_index.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let column_groups = (p.C + WG - 1u) / WG;
    let index = group_index(group, groups);
    let part = index / column_groups;
    let c = (index % column_groups) * WG + lane;
    if (part >= p.P || c >= p.C) {
        return;
    }
    var sum = 0.0;
    for (var n = part * p.chunk; n < min((part + 1u) * p.chunk, p.N); n++) {
        sum += dy[n * p.C + c] * x[n * p.C + c] * rstd[n];
    }
    partial[part * p.C + c] = sum;
}
