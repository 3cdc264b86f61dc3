// parts_one: a GEMM whose contraction is not cut into parts

const PARTS: u32 = 1u;

fn result_at(part: u32, row: u32, c: u32) -> u32 {
    return row * p.ldy + p.y0 + c;
}
