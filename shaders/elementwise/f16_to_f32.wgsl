// f16_to_f32: y = x widened; four elements per invocation
// bind 0  in   x  f16[E]
// bind 1  out  y  f32[E]
// const   WG  invocations per workgroup; HALF4 and its functions come from lib/half4_native.wgsl or lib/half4_packed.wgsl
// grid    cdiv(E, 4 * WG)

@group(0) @binding(0) var<storage, read> x: array<HALF4>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

//!include lib/group_index.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if (4u * i >= p.E) {
        return;
    }
    let v = load_half4(x[i]);
    for (var k = 0u; k < min(4u, p.E - 4u * i); k++) {
        y[4u * i + k] = v[k];
    }
}
