// colsum_rows: a GEMM whose unscaled results times `other` are summed by column over each tile's rows

const REDUCES: bool = true;

fn other(row: u32, c: u32) -> f32 {
    return t[row * p.outer + c];
}

fn put_sum(tile_row: u32, c: u32, sum: f32) {
    partial[tile_row * p.outer + c] = sum;
}
