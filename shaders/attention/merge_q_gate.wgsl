// merge_q_gate: the inverse of split_q_gate, for gradients
// bind 0  in   dq     f32[N, H*D]
// bind 1  in   dgate  f32[N, H*D]
// bind 2  out  dqg    f32[N, H*2*D]
// alias   PIECE  vec4<f32>, or f32 where D is no multiple of 4
// const   W  elements of a PIECE; WG  invocations per workgroup
// grid    cdiv(N * H * D, W * WG)

@group(0) @binding(0) var<storage, read> dq: array<PIECE>;
@group(0) @binding(1) var<storage, read> dgate: array<PIECE>;
@group(0) @binding(2) var<storage, read_write> dqg: array<PIECE>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/group_index.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if (W * i >= p.E) {
        return;
    }
    let width = p.D / W;
    let at = i + i / width * width;
    dqg[at] = dq[i];
    dqg[at + width] = dgate[i];
}
