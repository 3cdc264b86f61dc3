// split_q_gate: qg holds q then gate for each head; take them apart
// bind 0  in   qg    f32[N, H*2*D]
// bind 1  out  q     f32[N, H*D]
// bind 2  out  gate  f32[N, H*D]
// alias   PIECE  vec4<f32>, or f32 where D is no multiple of 4
// const   W  elements of a PIECE; WG  invocations per workgroup
// grid    cdiv(N * H * D, W * WG)

@group(0) @binding(0) var<storage, read> qg: array<PIECE>;
@group(0) @binding(1) var<storage, read_write> q: array<PIECE>;
@group(0) @binding(2) var<storage, read_write> gate: array<PIECE>;
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
    q[i] = qg[at];
    gate[i] = qg[at + width];
}
