// weights_signs_nn: weight4(m, k) = the signs [m, k .. k + 4] times cin over the contracted rows m; m < M, k < K

//!include lib/signs.wgsl

fn weight4(m: u32, k: u32) -> vec4<f32> {
    let scale = vec4<f32>(cin[m]);
    return select(-scale, scale, signs4(m, k));
}
