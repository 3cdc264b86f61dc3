// colsum_acc: y += column sums of partial; one invocation per column
// bind 0  in     partial  f32[P, C]
// bind 1  inout  y        f32[C]
// const   WG  invocations per workgroup
// grid    cdiv(C, WG)
// numerics  rows are added in order

@group(0) @binding(0) var<storage, read> partial: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

//!include lib/group_index.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let c = group_index(group, groups) * WG + lane;
    if (c >= p.C) {
        return;
    }
    var sum = 0.0;
    for (var row = 0u; row < p.P; row++) {
        sum += partial[row * p.C + c];
    }
    y[c] += sum;
}
