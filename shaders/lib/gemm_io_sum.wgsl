// gemm_io_sum: a GEMM of whose results only the column sums are kept

const CONTINUES: bool = false;

fn begin(row: u32, c: u32) -> f32 {
    return 0.0;
}

fn put(row: u32, c: u32, value: f32) {}
