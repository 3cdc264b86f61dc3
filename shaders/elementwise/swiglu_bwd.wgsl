// swiglu_bwd: gradients of silu(gate) * up
// bind 0  in   gate   f32[E]
// bind 1  in   up     f32[E]
// bind 2  in   dy     f32[E]
// bind 3  out  dgate  f32[E]
// bind 4  out  dup    f32[E]
// alias   PIECE  vec4<f32>, or f32 where E is no multiple of 4
// const   W  elements of a PIECE; WG  invocations per workgroup
// grid    cdiv(E, W * WG)

@group(0) @binding(0) var<storage, read> gate: array<PIECE>;
@group(0) @binding(1) var<storage, read> up: array<PIECE>;
@group(0) @binding(2) var<storage, read> dy: array<PIECE>;
@group(0) @binding(3) var<storage, read_write> dgate: array<PIECE>;
@group(0) @binding(4) var<storage, read_write> dup: array<PIECE>;
@group(0) @binding(5) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/sigmoid.wgsl

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
    dgate[i] = dy[i] * up[i] * dsilu(gate[i]);
    dup[i] = dy[i] * silu(gate[i]);
}
