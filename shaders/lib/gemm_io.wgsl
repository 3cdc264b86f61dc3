// gemm_io: the moving operand and the result of a GEMM, with their optional scales
// The input x is [N, lda], of which columns x0 .. x0 + (contraction length) take part; the result y is [N, ldy], from y0 on.

fn input4(row: u32, c: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (row < p.N) {
        let at = row * p.lda + p.x0 + c;
        if (c + 3u < p.inner) {
            v = vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
        } else {
            for (var i = 0u; c + i < p.inner; i++) {
                v[i] = x[at + i];
            }
        }
    }
    return scaled_input(v, c);
}

// What a sum starts from: the result so far where it goes on, so that a contraction cut in pieces gives the bits of the whole.
fn begin(row: u32, c: u32) -> f32 {
    if (ACC && CONTINUES && row < p.N && c < p.outer) {
        return y[row * p.ldy + p.y0 + c];
    }
    return 0.0;
}

fn put(row: u32, c: u32, value: f32) {
    if (row < p.N && c < p.outer) {
        let at = row * p.ldy + p.y0 + c;
        y[at] = select(0.0, y[at], ACC && !CONTINUES) + scaled_output(value, c);
    }
}
