// weights_f32: weight4(m, k) = w[m, k..k+4] of a dense f32 matrix [M, K]; zero outside

fn weight4(m: u32, k: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (m < p.M) {
        let at = m * p.K + k;
        if (k + 3u < p.K) {
            v = vec4<f32>(w[at], w[at + 1u], w[at + 2u], w[at + 3u]);
        } else {
            for (var i = 0u; k + i < p.K; i++) {
                v[i] = w[at + i];
            }
        }
    }
    return v;
}
