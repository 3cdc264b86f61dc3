// matrix_signs_nn: a tile of packed signs for y = x · w on matrix units, one word an invocation; past the end the last row

//!include lib/matrix_tile_nn.wgsl
//!include lib/matrix_signs.wgsl

fn fetch_weights(lane: u32, c: u32, col: u32) -> Weights {
    return sign_word(c + lane / 4u, col / 32u + lane % 4u);
}

fn factors_of(c: u32) -> u32 {
    return minus_pair(result_factor(c), result_factor(c + 1u));
}

fn fetch_factors(lane: u32, col: u32) -> Factors {
    let c = col + 32u * (lane % 4u);
    return Factors(
        factors_of(c), factors_of(c + 2u), factors_of(c + 4u), factors_of(c + 6u),
        factors_of(c + 8u), factors_of(c + 10u), factors_of(c + 12u), factors_of(c + 14u),
        factors_of(c + 16u), factors_of(c + 18u), factors_of(c + 20u), factors_of(c + 22u),
        factors_of(c + 24u), factors_of(c + 26u), factors_of(c + 28u), factors_of(c + 30u),
    );
}

fn stash_weights(lane: u32, factors: Factors, t: Weights) {
    stash_signs(lane / 4u * WEIGHT_PITCH + lane % 4u * 8u, factors, t);
}
