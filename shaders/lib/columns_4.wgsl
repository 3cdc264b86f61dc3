// columns_4: a COL is a vec4<f32> (twin: columns_1)

fn column(a: f32, b: f32, c: f32, d: f32) -> vec4<f32> {
    return vec4<f32>(a, b, c, d);
}

fn total(x: vec4<f32>) -> f32 {
    return x.x + x.y + x.z + x.w;
}
