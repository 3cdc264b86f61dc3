// matrix_signs_nt: a tile of packed signs for y = x · wᵀ on matrix units, one word an invocation; past the end the last row

//!include lib/matrix_tile_nt.wgsl
//!include lib/matrix_signs.wgsl

fn fetch_weights(lane: u32, c: u32, col: u32) -> Weights {
    return sign_word(col + lane, c / 32u);
}

fn fetch_factors(lane: u32, col: u32) -> Factors {
    let factor = result_factor(col + lane);
    let f = minus_pair(factor, factor);
    return Factors(f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f);
}

fn stash_weights(lane: u32, factors: Factors, t: Weights) {
    stash_signs(lane * WEIGHT_PITCH, factors, t);
}
