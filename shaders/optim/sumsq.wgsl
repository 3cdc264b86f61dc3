// sumsq: sum of squares, and count of non-finite entries, of the entries of g whose mask is not 0; one workgroup per chunk
// bind 0  in   g        f32[P]
// bind 1  in   mask     f32[P]     0 or 1
// bind 2  out  partial  f32[G, 2]  (sum, count) of every chunk
// const   WG  invocations per chunk, a power of two
// grid    G
// numerics  f32 sums in a fixed order; a non-finite entry is counted, not summed

@group(0) @binding(0) var<storage, read> g: array<f32>;
@group(0) @binding(1) var<storage, read> mask: array<f32>;
@group(0) @binding(2) var<storage, read_write> partial: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/group_sum.wgsl
//!include lib/finite.wgsl

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if (group.x >= p.G) {
        return;
    }
    let first = group.x * p.chunk;
    let end = min(first + p.chunk, p.P);
    var sum = 0.0;
    var count = 0.0;
    for (var i = first + lane; i < end; i += WG) {
        let value = g[i];
        if (mask[i] != 0.0) {
            if (is_finite(value)) {
                sum += value * value;
            } else {
                count += 1.0;
            }
        }
    }
    let sums = group_sum(sum, lane);
    let counts = group_sum(count, lane);
    if (lane == 0u) {
        partial[2u * group.x] = sums;
        partial[2u * group.x + 1u] = counts;
    }
}
