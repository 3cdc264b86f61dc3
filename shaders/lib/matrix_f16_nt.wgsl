// matrix_f16_nt: a tile of f16 weights [M, K] for matrix units, eight vec4s an invocation
// Past the end the last weights are repeated: finite, against inputs that are zero or results that are not stored.

//!include lib/matrix_tile_nt.wgsl

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
    let m = col + lane / 8u;
    let k = c + 4u * (lane % 8u);
    return Weights(
        clamped(m, k), clamped(m + 16u, k), clamped(m + 32u, k), clamped(m + 48u, k),
        clamped(m + 64u, k), clamped(m + 80u, k), clamped(m + 96u, k), clamped(m + 112u, k),
    );
}

// Dense weights have none.
fn fetch_factors(lane: u32, col: u32) -> u32 {
    return 0u;
}

fn stash_weights(lane: u32, factors: u32, t: Weights) {
    let slot = lane / 8u * WEIGHT_PITCH + lane % 8u;
    tile_w[slot] = t.w0;
    tile_w[slot + 16u * WEIGHT_PITCH] = t.w1;
    tile_w[slot + 32u * WEIGHT_PITCH] = t.w2;
    tile_w[slot + 48u * WEIGHT_PITCH] = t.w3;
    tile_w[slot + 64u * WEIGHT_PITCH] = t.w4;
    tile_w[slot + 80u * WEIGHT_PITCH] = t.w5;
    tile_w[slot + 96u * WEIGHT_PITCH] = t.w6;
    tile_w[slot + 112u * WEIGHT_PITCH] = t.w7;
}
