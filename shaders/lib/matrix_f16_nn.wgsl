// matrix_f16_nn: a tile of f16 weights [M, K] for matrix units, eight vec4s an invocation
// Past the end the last weights are repeated: finite, against inputs that are zero or results that are not stored.

//!include lib/matrix_tile_nn.wgsl

struct Weights {
    w0: vec4<f16>, w1: vec4<f16>, w2: vec4<f16>, w3: vec4<f16>,
    w4: vec4<f16>, w5: vec4<f16>, w6: vec4<f16>, w7: vec4<f16>,
}

fn prepare_weights(lane: u32) {}

fn input_scale4(c: u32) -> vec4<f32> {
    return vec4<f32>(1.0);
}

fn clamped(m: u32, k: u32) -> vec4<f16> {
    return w[(min(m, p.M - 1u) * p.K + min(k, p.K - 4u)) / 4u];
}

fn fetch_weights(lane: u32, c: u32, col: u32) -> Weights {
    let m = c + lane / 32u;
    let k = col + 4u * (lane % 32u);
    return Weights(
        clamped(m, k), clamped(m + 4u, k), clamped(m + 8u, k), clamped(m + 12u, k),
        clamped(m + 16u, k), clamped(m + 20u, k), clamped(m + 24u, k), clamped(m + 28u, k),
    );
}

// Dense weights have none.
fn fetch_factors(lane: u32, col: u32) -> u32 {
    return 0u;
}

fn stash_weights(lane: u32, factors: u32, t: Weights) {
    let slot = lane / 32u * WEIGHT_PITCH + lane % 32u;
    tile_w[slot] = t.w0;
    tile_w[slot + 4u * WEIGHT_PITCH] = t.w1;
    tile_w[slot + 8u * WEIGHT_PITCH] = t.w2;
    tile_w[slot + 12u * WEIGHT_PITCH] = t.w3;
    tile_w[slot + 16u * WEIGHT_PITCH] = t.w4;
    tile_w[slot + 20u * WEIGHT_PITCH] = t.w5;
    tile_w[slot + 24u * WEIGHT_PITCH] = t.w6;
    tile_w[slot + 28u * WEIGHT_PITCH] = t.w7;
}
