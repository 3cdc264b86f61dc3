// gdn_carry: sum(state * dstate) times the chunk's whole decay, for each of its tokens; one workgroup per chunk
// bind 0  in     rates    f32[N, Hv, 4]
// bind 1  in     states   f32[G, NC, Dk, Dv]
// bind 2  in     dstates  f32[G, NC, Dk, Dv]
// bind 3  inout  carry    f32[N, Hv]          this group's scans
// const   DK, DV  head dims; L tokens per chunk; WG invocations, a power of two
// grid    G * NC
// numerics  f32, sums in a fixed order
// see     gdn_dqk.wgsl

@group(0) @binding(0) var<storage, read> rates: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> states: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> dstates: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> carry: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_sum.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let chunk = group_index(group, groups);
    if (chunk >= p.G * p.NC) {
        return;
    }
    let scan = p.scan0 + chunk / p.NC;
    let c = chunk % p.NC;
    let h = scan % p.Hv;
    let n0 = (scan / p.Hv) * p.T + c * L;
    let last = min(L, p.T - c * L) - 1u;
    var sum = vec4<f32>(0.0);
    for (var i = lane; i < DK * DV / 4u; i += WG) {
        let at = chunk * (DK * DV / 4u) + i;
        sum += states[at] * dstates[at];
    }
    let total = group_sum(sum.x + sum.y + sum.z + sum.w, lane) * rates[(n0 + last) * p.Hv + h].y;
    for (var t = lane; t <= last; t += WG) {
        carry[(n0 + t) * p.Hv + h] = total;
    }
}
