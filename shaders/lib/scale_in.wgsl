// scale_in: a GEMM whose input column c is multiplied by cin[c]

const CONTINUES: bool = false;

fn scaled_input(v: vec4<f32>, c: u32) -> vec4<f32> {
    var s = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if (c + i < p.inner) {
            s[i] = cin[c + i];
        }
    }
    return v * s;
}

fn scaled_output(v: f32, c: u32) -> f32 {
    return v;
}
