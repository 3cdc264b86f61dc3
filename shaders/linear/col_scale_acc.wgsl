// col_scale_acc: y += x with column c times g[c]
// bind 0  in     x  f32[N, C]
// bind 1  in     g  f32[C]
// bind 2  inout  y  f32[N, C]
// alias   PIECE  vec4<f32>, or f32 where C is no multiple of 4
// const   W  elements of a PIECE; WG  invocations per workgroup
// grid    cdiv(N * C, W * WG)
// numerics  pointwise

@group(0) @binding(0) var<storage, read> x: array<PIECE>;
@group(0) @binding(1) var<storage, read> g: array<PIECE>;
@group(0) @binding(2) var<storage, read_write> y: array<PIECE>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/group_index.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if (W * i < p.N * p.C) {
        y[i] += x[i] * g[i % (p.C / W)];
    }
}
