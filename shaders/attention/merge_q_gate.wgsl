// merge_q_gate: the inverse of split_q_gate, for gradients
// bind 0  in   dq     f32[N, H*D]
// bind 1  in   dgate  f32[N, H*D]
// bind 2  out  dqg    f32[N, H*2*D]
// const   WG  invocations per workgroup
// grid    cdiv(N * H * D, WG)

@group(0) @binding(0) var<storage, read> dq: array<f32>;
@group(0) @binding(1) var<storage, read> dgate: array<f32>;
@group(0) @binding(2) var<storage, read_write> dqg: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/group_index.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if (i >= p.E) {
        return;
    }
    let at = (i / p.D) * 2u * p.D + i % p.D;
    dqg[at] = dq[i];
    dqg[at + p.D] = dgate[i];
}
