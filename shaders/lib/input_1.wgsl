// input_1: input4(row, c) = x[row, x0 + c .. + 4] of [N, lda], zero from column x0 + inner on; c < inner (twin: input_4)

fn input4(row: u32, c: u32) -> vec4<f32> {
    let at = row * p.lda + p.x0 + c;
    var v = vec4<f32>(x[at], 0.0, 0.0, 0.0);
    for (var i = 1u; i < 4u && c + i < p.inner; i++) {
        v[i] = x[at + i];
    }
    return v;
}
