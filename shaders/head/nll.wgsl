// nll: lse - logit of the target; one invocation per row
// bind 0  in   logits   f32[R, V]
// bind 1  in   lse      f32[R]
// bind 2  in   targets  u32[R]  below V
// bind 3  out  nll      f32[R]
// const   WG  invocations per workgroup
// grid    R / WG

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> lse: array<f32>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read_write> nll: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

//!include lib/group_index.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_index(group, groups) * WG + lane;
    if (row < p.R) {
        nll[row] = lse[row] - logits[row * p.V + targets[row]];
    }
}
