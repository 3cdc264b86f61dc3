// tile_nt: the weights' tile of y = x · wᵀ: 128 results, two vec4 along the contraction each
// An invocation's results are 16 columns apart, so that neighbours read neighbouring rows of the tile.

const STRIDE: u32 = 16u;
const SECOND: u32 = 64u;  // from the weights of an invocation's first four columns to those of its other four
var<workgroup> tile_w: array<vec4<f32>, 128u * PITCH>;

fn leading_column(tx: u32) -> u32 {
    return tx;
}

fn tile_weight(lane: u32, c: u32, col: u32) -> vec4<f32> {
    return weight_or_zero(col + lane / 2u, c + 4u * (lane % 2u));
}

fn tile_weight_slot(lane: u32) -> u32 {
    return lane / 2u * PITCH + lane % 2u;
}

// One vector a contraction index.
fn weights(first: u32, step: u32) -> mat4x4<f32> {
    let at = first * PITCH + step;
    let apart = STRIDE * PITCH;
    return transpose(mat4x4<f32>(tile_w[at], tile_w[at + apart], tile_w[at + 2u * apart], tile_w[at + 3u * apart]));
}
