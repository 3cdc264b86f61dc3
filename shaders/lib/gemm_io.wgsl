// gemm_io: where a GEMM's sums start and where they go: y is [N, ldy], of which columns y0 .. y0 + outer are the result

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
