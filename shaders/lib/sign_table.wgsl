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

// Factors of the results of 32 neighbouring signs.
struct Factors {
    f0: vec4<f16>, f1: vec4<f16>, f2: vec4<f16>, f3: vec4<f16>,
    f4: vec4<f16>, f5: vec4<f16>, f6: vec4<f16>, f7: vec4<f16>,
}

fn stash_signs(slot: u32, f: Factors, bits: u32) {
    tile_w[slot] = f.f0 * table[bits & 15u];
    tile_w[slot + 1u] = f.f1 * table[(bits >> 4u) & 15u];
    tile_w[slot + 2u] = f.f2 * table[(bits >> 8u) & 15u];
    tile_w[slot + 3u] = f.f3 * table[(bits >> 12u) & 15u];
    tile_w[slot + 4u] = f.f4 * table[(bits >> 16u) & 15u];
    tile_w[slot + 5u] = f.f5 * table[(bits >> 20u) & 15u];
    tile_w[slot + 6u] = f.f6 * table[(bits >> 24u) & 15u];
    tile_w[slot + 7u] = f.f7 * table[bits >> 28u];
}
