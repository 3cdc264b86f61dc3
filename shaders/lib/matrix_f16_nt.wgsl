// matrix_f16_nt: a tile of f16 weights [M, K] for y = x · wᵀ on matrix units: 32 rows of 32 weights a pass
// A row is whole vec4<u32>s, eight weights each. Past the end the last weights are repeated: finite, against inputs that are
// zero or results that are not stored.

//!include lib/matrix_tile_nt.wgsl
//!include lib/matrix_f16.wgsl

fn fetch_weights(lane: u32, c: u32, col: u32) -> Weights {
    let m = col + lane / 4u;
    let k = c + 8u * (lane % 4u);
    return Weights(weights8(m, k), weights8(m + 32u, k), weights8(m + 64u, k), weights8(m + 96u, k));
}

fn stash_weights(lane: u32, factors: u32, t: Weights) {
    let slot = lane / 4u * WEIGHT_PITCH + lane % 4u * 2u;
    stash_weights8(slot, t.w0);
    stash_weights8(slot + 32u * WEIGHT_PITCH, t.w1);
    stash_weights8(slot + 64u * WEIGHT_PITCH, t.w2);
    stash_weights8(slot + 96u * WEIGHT_PITCH, t.w3);
}
