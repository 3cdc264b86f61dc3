// columns_1: a COL is one f32 (twin: columns_4)

fn column(a: f32, b: f32, c: f32, d: f32) -> f32 {
    return a;
}

fn total(x: f32) -> f32 {
    return x;
}
