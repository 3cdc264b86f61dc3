// attention_delta: delta = sum over D of o * dout; one workgroup per row and head
// bind 0  in   o      f32[N, H, D]
// bind 1  in   dout   f32[N, H, D]
// bind 2  out  delta  f32[N, H]
// const   WG  invocations per head, a power of two
// grid    N * H
// numerics  f32 sums in a fixed tree order

@group(0) @binding(0) var<storage, read> o: array<f32>;
@group(0) @binding(1) var<storage, read> dout: array<f32>;
@group(0) @binding(2) var<storage, read_write> delta: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_sum.wgsl

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
    var sum = 0.0;
    for (var i = row * p.D + lane; i < (row + 1u) * p.D; i += WG) {
        sum += o[i] * dout[i];
    }
    let total = group_sum(sum, lane);
    if (lane == 0u) {
        delta[row] = total;
    }
}
