// kl_full: KL(softmax of t_logits ‖ softmax of s_logits) of every row; one workgroup per row
// bind 0  in   t_logits  f32[R, V]
// bind 1  in   s_logits  f32[R, V]
// bind 2  in   t_lse     f32[R]
// bind 3  in   s_lse     f32[R]
// bind 4  out  kl        f32[R]
// const   WG  invocations per row, a power of two
// grid    R
// numerics  f32 sums in a fixed order; equal logits give exactly 0

@group(0) @binding(0) var<storage, read> t_logits: array<f32>;
@group(0) @binding(1) var<storage, read> s_logits: array<f32>;
@group(0) @binding(2) var<storage, read> t_lse: array<f32>;
@group(0) @binding(3) var<storage, read> s_lse: array<f32>;
@group(0) @binding(4) var<storage, read_write> kl: array<f32>;
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
    if (row >= p.R) {
        return;
    }
    let base = row * p.V;
    let tz = t_lse[row];
    let sz = s_lse[row];
    var sum = 0.0;
    for (var v = lane; v < p.V; v += WG) {
        let t = t_logits[base + v] - tz;
        sum += exp(t) * (t - (s_logits[base + v] - sz));
    }
    let total = group_sum(sum, lane);
    if (lane == 0u) {
        kl[row] = total;
    }
}
