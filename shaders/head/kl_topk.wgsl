// kl_topk: loss as in kl_topk_loss; logits become weight * (softmax * sum_k probs - scattered probs); one workgroup per row
// bind 0  inout  logits  f32[R, V]  their gradient afterwards
// bind 1  in     lse     f32[R]
// bind 2  in     ids     u32[R, K]  below V, distinct within a row
// bind 3  in     probs   f32[R, K]
// bind 4  in     weight  f32[R]
// bind 5  out    loss    f32[R]     without the weight
// const   WG  invocations per row, a power of two
// grid    R
// numerics  f32 sums in a fixed order; terms with probs = 0 add 0

@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read> lse: array<f32>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read> probs: array<f32>;
@group(0) @binding(4) var<storage, read> weight: array<f32>;
@group(0) @binding(5) var<storage, read_write> loss: array<f32>;
@group(0) @binding(6) var<uniform> p: Params;

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
    let z = lse[row];
    var sum = 0.0;
    var mass = 0.0;
    for (var k = lane; k < p.K; k += WG) {
        let prob = probs[row * p.K + k];
        if (prob > 0.0) {
            sum += prob * (log(prob) - (logits[base + ids[row * p.K + k]] - z));
            mass += prob;
        }
    }
    let total = group_sum(sum, lane);
    let scale = weight[row] * group_sum(mass, lane);
    if (lane == 0u) {
        loss[row] = total;
    }
    storageBarrier();  // every logit of a target has been read
    for (var v = lane; v < p.V; v += WG) {
        logits[base + v] = scale * exp(logits[base + v] - z);
    }
    storageBarrier();  // the softmax is in place
    for (var k = lane; k < p.K; k += WG) {
        logits[base + ids[row * p.K + k]] -= weight[row] * probs[row * p.K + k];
    }
}
