// weights_f16: weight4(m, k) = w[m, k..k+4] of a dense f16 matrix [M, K], K % 4 == 0; zero outside

fn weight4(m: u32, k: u32) -> vec4<f32> {
    if (m < p.M && k < p.K) {
        return load_half4(w[(m * p.K + k) / 4u]);
    }
    return vec4<f32>();
}
