// weights_signs_nt: weight4(m, k) = the signs [m, k .. k + 4] times cin over the contracted columns k; m < M, k < K
// The last cin stands in for those behind it: their inputs are zero.

//!include lib/signs.wgsl

fn weight4(m: u32, k: u32) -> vec4<f32> {
    let last = p.K - 1u;
    let scale = vec4<f32>(cin[k], cin[min(k + 1u, last)], cin[min(k + 2u, last)], cin[min(k + 3u, last)]);
    return select(-scale, scale, signs4(m, k));
}
