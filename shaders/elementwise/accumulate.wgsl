// accumulate: y += x
// bind 0  in     x  f32[E]
// bind 1  inout  y  f32[E]
// alias   PIECE  vec4<f32>, or f32 where E is no multiple of 4
// const   W  elements of a PIECE; WG  invocations per workgroup
// grid    cdiv(E, W * WG)

@group(0) @binding(0) var<storage, read> x: array<PIECE>;
@group(0) @binding(1) var<storage, read_write> y: array<PIECE>;
@group(0) @binding(2) var<uniform> p: Params;

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
    y[i] += x[i];
}
