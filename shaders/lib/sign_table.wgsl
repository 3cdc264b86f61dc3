// sign_table: the sixteen vec4s of four signs, in workgroup memory where no two of them share a bank

var<workgroup> table: array<vec4<f16>, 16>;

fn prepare_weights(lane: u32) {
    if (lane < 16u) {
        let positive = (vec4<u32>(lane) & vec4<u32>(1u, 2u, 4u, 8u)) != vec4<u32>();
        table[lane] = select(vec4<f16>(-1.0h), vec4<f16>(1.0h), positive);
    }
    workgroupBarrier();
}

// Columns c .. c + 4 of cin, c a multiple of 4; zero behind the contraction.
fn input_scale4(c: u32) -> vec4<f32> {
    return vec4<f32>(cin[c], cin[c + 1u], cin[c + 2u], cin[c + 3u]);
}

fn stash_signs(slot: u32, factor: f16, bits: u32) {
    tile_w[slot] = factor * table[bits & 15u];
    tile_w[slot + 1u] = factor * table[(bits >> 4u) & 15u];
    tile_w[slot + 2u] = factor * table[(bits >> 8u) & 15u];
    tile_w[slot + 3u] = factor * table[(bits >> 12u) & 15u];
    tile_w[slot + 4u] = factor * table[(bits >> 16u) & 15u];
    tile_w[slot + 5u] = factor * table[(bits >> 20u) & 15u];
    tile_w[slot + 6u] = factor * table[(bits >> 24u) & 15u];
    tile_w[slot + 7u] = factor * table[bits >> 28u];
}
