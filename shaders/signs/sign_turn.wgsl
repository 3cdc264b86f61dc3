// sign_turn: the words of the transposed signs; signs behind the last row are 0
// bind 0  in   bits    u32[R, W]
// bind 1  out  turned  u32[C, V]
// const   WG  invocations per workgroup
// grid    C * V / WG; neighbours take neighbouring columns, whose signs lie in one word

@group(0) @binding(0) var<storage, read> bits: array<u32>;
@group(0) @binding(1) var<storage, read_write> turned: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

//!include lib/group_index.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    let col = i % p.C;
    let first = 32u * (i / p.C);
    if (i >= p.C * p.V) {
        return;
    }
    var word = 0u;
    for (var j = 0u; j < min(32u, p.R - first); j++) {
        word |= ((bits[(first + j) * p.W + col / 32u] >> (col % 32u)) & 1u) << j;
    }
    turned[col * p.V + first / 32u] = word;
}
