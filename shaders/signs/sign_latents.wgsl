// sign_latents: the first latents: magnitudes uniform in (0, span), the signs of the bits; 0 where there is no sign
// bind 0  in   bits  u32[B, W]  B >= R
// bind 1  out  lat   f16[R, 32*W]
// const   WG  invocations per workgroup
// grid    R * 16 * W / WG
// numerics  f16 by integer arithmetic, to the nearest and never 0

@group(0) @binding(0) var<storage, read> bits: array<u32>;
@group(0) @binding(1) var<storage, read_write> lat: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/latents.wgsl

fn first_latent(index: u32, bit: u32) -> u32 {
    let fraction = f32(random_bits(p.key, 0u, index) >> 8u);
    return max(half_nearest(fraction * (p.span * 5.9604644775390625e-08)), 1u) | ((1u - bit) << 15u);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    let row = i / (16u * p.W);
    let col = 2u * (i % (16u * p.W));
    if (row >= p.R) {
        return;
    }
    var pair = 0u;
    if (col < p.C) {
        let two = bits[row * p.W + col / 32u] >> (col % 32u);
        let index = row * p.C + col;
        pair = first_latent(index, two & 1u) | (first_latent(index + 1u, (two >> 1u) & 1u) << 16u);
    }
    lat[i] = pair;
}
