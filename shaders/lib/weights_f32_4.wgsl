// weights_f32_4: weight4(m, k) = w[m, k .. k + 4] of a dense f32 matrix [M, K] stored as vec4; m < M, k < K

fn weight4(m: u32, k: u32) -> vec4<f32> {
    return w[(m * p.K + k) / 4u];
}
