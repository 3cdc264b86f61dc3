// input_4: input4(row, c) = x[row, x0 + c .. + 4] of [N, lda] stored as vec4; c < inner, all three multiples of 4

fn input4(row: u32, c: u32) -> vec4<f32> {
    return x[(row * p.lda + p.x0 + c) / 4u];
}
