// subgroup_octets: sums over each 8 neighbouring invocations by shuffles
// The device's self-test: subgroups of fewer than 8, or invocations in another order, give another result.

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> p: vec4<u32>;

@compute @workgroup_size(128)
fn main(@builtin(local_invocation_index) lane: u32) {
    var sum = lane * lane + p.x;
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    sum += subgroupShuffleXor(sum, 4u);
    y[lane] = sum + subgroupShuffleXor(lane, 5u);
}
