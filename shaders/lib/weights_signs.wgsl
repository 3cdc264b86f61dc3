// weights_signs: weight4(m, k) = the signs [m, k..k+4] as ±1; words u32[M, W], least significant bit first, 1 is +1
// The bits behind the last column are 0 and meet inputs that are zero there.

fn weight4(m: u32, k: u32) -> vec4<f32> {
    if (m >= p.M || k >= p.K) {
        return vec4<f32>();
    }
    let bits = vec4<u32>(w[m * p.W + k / 32u] >> (k % 32u)) & vec4<u32>(1u, 2u, 4u, 8u);
    return select(vec4<f32>(-1.0), vec4<f32>(1.0), bits != vec4<u32>());
}
