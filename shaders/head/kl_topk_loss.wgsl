// kl_topk_loss: loss = sum_k probs (ln probs - (logit - lse)) of every row; one workgroup per row
// bind 0  in   logits  f32[R, V]
// bind 1  in   lse     f32[R]
// bind 2  in   ids     u32[R, K]  below V
// bind 3  in   probs   f32[R, K]
// bind 4  out  loss    f32[R]
// const   WG  invocations per row, a power of two
// grid    R
// numerics  f32 sums in a fixed order; terms with probs = 0 add 0

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> lse: array<f32>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read> probs: array<f32>;
@group(0) @binding(4) var<storage, read_write> loss: array<f32>;
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
    let z = lse[row];
    var sum = 0.0;
    for (var k = lane; k < p.K; k += WG) {
        let prob = probs[row * p.K + k];
        if (prob > 0.0) {
            sum += prob * (log(prob) - (logits[row * p.V + ids[row * p.K + k]] - z));
        }
    }
    let total = group_sum(sum, lane);
    if (lane == 0u) {
        loss[row] = total;
    }
}
