// parts_many: a GEMM whose contraction is cut into PARTS parts with results [N, outer] of their own

fn result_at(part: u32, row: u32, c: u32) -> u32 {
    return (part * p.N + row) * p.ldy + c;
}

fn result_factor(c: u32) -> f32 {
    return 1.0;
}
