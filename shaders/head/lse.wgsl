// lse: log of the sum of exponentials of every row; one workgroup per row
// bind 0  in   logits  f32[R, V]
// bind 1  out  lse     f32[R]
// const   WG  invocations per row, a power of two
// grid    R
// numerics  the row's maximum is subtracted first; f32 sums in a fixed order

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> lse: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_max.wgsl
//!include lib/group_sum.wgsl

const LOWEST = -3.4028234e38;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_index(group, groups);
    if (row >= p.R) {
        return;
    }
    let base = row * p.V;
    var most = LOWEST;
    for (var v = lane; v < p.V; v += WG) {
        most = max(most, logits[base + v]);
    }
    let top = group_max(most, lane);
    var sum = 0.0;
    for (var v = lane; v < p.V; v += WG) {
        sum += exp(logits[base + v] - top);
    }
    let total = group_sum(sum, lane);
    if (lane == 0u) {
        lse[row] = top + log(total);
    }
}
