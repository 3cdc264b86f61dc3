// sign_flips: adds the number of bits in which two bitmaps differ to counts[slot]
// bind 0  in     bits    u32[E]
// bind 1  in     start   u32[E]
// bind 2  inout  counts  u32[S]
// const   WG  invocations per workgroup
// grid    E / WG

@group(0) @binding(0) var<storage, read> bits: array<u32>;
@group(0) @binding(1) var<storage, read> start: array<u32>;
@group(0) @binding(2) var<storage, read_write> counts: array<atomic<u32>>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/group_index.wgsl

var<workgroup> total: atomic<u32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if (lane == 0u) {
        atomicStore(&total, 0u);
    }
    workgroupBarrier();
    if (i < p.E) {
        atomicAdd(&total, countOneBits(bits[i] ^ start[i]));
    }
    workgroupBarrier();
    if (lane == 0u) {
        atomicAdd(&counts[p.slot], atomicLoad(&total));
    }
}
