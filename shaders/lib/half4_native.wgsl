// half4_native: four f16 of storage as vec4<f16>, computed with as f32

fn load_half4(h: HALF4) -> vec4<f32> {
    return vec4<f32>(h);
}

fn store_half4(v: vec4<f32>) -> HALF4 {
    return HALF4(v);
}
