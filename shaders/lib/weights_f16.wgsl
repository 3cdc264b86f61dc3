// weights_f16: weight4(m, k) = w[m, k .. k + 4] of a dense f16 matrix [M, K], K a multiple of 4; m < M, k < K

fn weight4(m: u32, k: u32) -> vec4<f32> {
    return load_half4(w[(m * p.K + k) / 4u]);
}
