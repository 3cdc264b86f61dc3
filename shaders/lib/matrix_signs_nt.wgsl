// matrix_signs_nt: a tile of packed signs for y = x · wᵀ on matrix units, one word an invocation; past the end the last row

//!include lib/matrix_tile_nt.wgsl
//!include lib/sign_table.wgsl

alias Weights = u32;

fn fetch_weights(lane: u32, c: u32, col: u32) -> Weights {
    return w[min(col + lane, p.M - 1u) * p.W + min(c / 32u, p.W - 1u)];
}

fn fetch_factors(lane: u32, col: u32) -> Factors {
    let f = vec4<f16>(f16(result_factor(col + lane)));
    return Factors(f, f, f, f, f, f, f, f);
}

fn stash_weights(lane: u32, factors: Factors, t: Weights) {
    stash_signs(lane * WEIGHT_PITCH, factors, t);
}
