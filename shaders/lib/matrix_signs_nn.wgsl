// matrix_signs_nn: a tile of packed signs for y = x · w on matrix units, one word an invocation; past the end the last row

//!include lib/matrix_tile_nn.wgsl
//!include lib/sign_table.wgsl

alias Weights = u32;

fn fetch_weights(lane: u32, c: u32, col: u32) -> Weights {
    return w[min(c + lane / 4u, p.M - 1u) * p.W + min(col / 32u + lane % 4u, p.W - 1u)];
}

fn factor4(c: u32) -> vec4<f16> {
    return vec4<f16>(vec4<f32>(result_factor(c), result_factor(c + 1u), result_factor(c + 2u), result_factor(c + 3u)));
}

fn fetch_factors(lane: u32, col: u32) -> Factors {
    let c = col + 32u * (lane % 4u);
    return Factors(
        factor4(c), factor4(c + 4u), factor4(c + 8u), factor4(c + 12u),
        factor4(c + 16u), factor4(c + 20u), factor4(c + 24u), factor4(c + 28u),
    );
}

fn stash_weights(lane: u32, factors: Factors, t: Weights) {
    stash_signs(lane / 4u * WEIGHT_PITCH + lane % 4u * 8u, factors, t);
}
