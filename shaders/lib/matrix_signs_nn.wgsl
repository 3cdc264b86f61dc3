// matrix_signs_nn: a tile of packed signs for y = x · w on matrix units, one word an invocation; past the end the last row

//!include lib/matrix_tile_nn.wgsl
//!include lib/sign_table.wgsl

alias Weights = u32;

fn fetch_weights(lane: u32, c: u32, col: u32) -> Weights {
    return w[min(c + lane / 4u, p.M - 1u) * p.W + min(col / 32u + lane % 4u, p.W - 1u)];
}

fn stash_weights(lane: u32, factor: f16, t: Weights) {
    stash_signs(lane / 4u * WEIGHT_PITCH + lane % 4u * 8u, factor, t);
}
