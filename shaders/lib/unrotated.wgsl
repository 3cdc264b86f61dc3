// unrotated: undoes the rotary embedding of dy f32[N, H, D], given table f32[T, half, 2] and the params H, D, T, half

// gradient before the rotation, at dimension d of a row and head
fn unrotated(row: u32, d: u32) -> f32 {
    let base = row * p.D;
    let v = dy[base + d];
    if (d >= 2u * p.half) {
        return v;
    }
    let pair = d % p.half;
    let at = 2u * ((row / p.H) % p.T * p.half + pair);
    if (d < p.half) {
        return v * table[at] + dy[base + d + p.half] * table[at + 1u];
    }
    return v * table[at] - dy[base + pair] * table[at + 1u];
}
