// tile_nn: the weights' tile of y = x · w: 8 contraction indices, 32 vec4 of neighbouring results each

const STRIDE: u32 = 1u;
const SECOND: u32 = 16u;  // from the weights of an invocation's first four columns to those of its other four
var<workgroup> tile_w: array<vec4<f32>, 8u * 32u>;

fn leading_column(tx: u32) -> u32 {
    return 4u * tx;
}

fn tile_weight(lane: u32, c: u32, col: u32) -> vec4<f32> {
    return weight_or_zero(c + lane / 32u, col + 4u * (lane % 32u));
}

fn tile_weight_slot(lane: u32) -> u32 {
    return lane;
}

// One vector a contraction index.
fn weights(first: u32, step: u32) -> mat4x4<f32> {
    let at = 128u * step + first;
    return mat4x4<f32>(tile_w[at], tile_w[at + 32u], tile_w[at + 64u], tile_w[at + 96u]);
}
