// weights_f32_1: weight4(m, k) = w[m, k .. k + 4] of a dense f32 matrix [M, K]; m < M, k < K (twin: weights_f32_4)
// The last column stands in for those behind it, which meet zeros or are not stored.

fn weight4(m: u32, k: u32) -> vec4<f32> {
    let at = m * p.K + k;
    let last = m * p.K + p.K - 1u;
    return vec4<f32>(w[at], w[min(at + 1u, last)], w[min(at + 2u, last)], w[min(at + 3u, last)]);
}
