// matrix_f16_nn: a tile of f16 weights [M, K] for y = x · w on matrix units: 8 rows of 128 weights a pass
// A row is whole vec4<u32>s, eight weights each. Past the end the last weights are repeated: finite, against inputs that are
// zero or results that are not stored.

//!include lib/matrix_tile_nn.wgsl
//!include lib/matrix_f16.wgsl

fn fetch_weights(lane: u32, c: u32, col: u32) -> Weights {
    let m = c + lane / 16u;
    let k = col + 8u * (lane % 16u);
    return Weights(weights8(m, k), weights8(m + 8u, k), weights8(m + 16u, k), weights8(m + 24u, k));
}

fn stash_weights(lane: u32, factors: u32, t: Weights) {
    let slot = lane / 16u * WEIGHT_PITCH + lane % 16u * 2u;
    stash_weights8(slot, t.w0);
    stash_weights8(slot + 8u * WEIGHT_PITCH, t.w1);
    stash_weights8(slot + 16u * WEIGHT_PITCH, t.w2);
    stash_weights8(slot + 24u * WEIGHT_PITCH, t.w3);
}
