// half4_packed: four f16 of storage as two u32, for devices without shader-f16

fn load_half4(h: HALF4) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(h.x), unpack2x16float(h.y));
}

fn store_half4(v: vec4<f32>) -> HALF4 {
    return HALF4(pack2x16float(v.xy), pack2x16float(v.zw));
}
