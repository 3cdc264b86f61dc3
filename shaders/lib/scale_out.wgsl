// scale_out: a GEMM whose result column c is multiplied by cout[c], and then added where it accumulates

const CONTINUES: bool = false;

fn scaled_output(v: f32, c: u32) -> f32 {
    return v * cout[c];
}

fn result_factor(c: u32) -> f32 {
    return cout[min(c, p.outer - 1u)];
}
