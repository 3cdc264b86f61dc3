// finite: whether a value is neither NaN nor infinite, by its bits

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}
