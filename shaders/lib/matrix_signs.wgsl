// matrix_signs: packed signs for matrix units, times a factor a result: a sign bit is flipped, two weights an instruction

alias Weights = u32;

// Minus the factors of the results of 32 neighbouring signs, as pairs of f16.
struct Factors {
    f0: u32, f1: u32, f2: u32, f3: u32, f4: u32, f5: u32, f6: u32, f7: u32,
    f8: u32, f9: u32, f10: u32, f11: u32, f12: u32, f13: u32, f14: u32, f15: u32,
}

fn minus_pair(first: f32, second: f32) -> u32 {
    return pack2x16float(vec2<f32>(-first, -second));
}

fn sign_word(row: u32, word: u32) -> u32 {
    var at = row * p.W + word;
    if (!WHOLE) {
        at = min(row, p.M - 1u) * p.W + min(word, p.W - 1u);
    }
    return w[at];
}

// Columns c .. c + 4 of cin, c a multiple of 4.
fn input_scale4(c: u32) -> vec4<f32> {
    return cin[c / 4u];
}

// The even bits in the lower half, the odd bits in the upper one.
fn even_then_odd(bits: u32) -> u32 {
    var z = bits;
    var t = (z ^ (z >> 1u)) & 0x22222222u;
    z ^= t ^ (t << 1u);
    t = (z ^ (z >> 2u)) & 0x0c0c0c0cu;
    z ^= t ^ (t << 2u);
    t = (z ^ (z >> 4u)) & 0x00f000f0u;
    z ^= t ^ (t << 4u);
    t = (z ^ (z >> 8u)) & 0x0000ff00u;
    return z ^ t ^ (t << 8u);
}

// Minus the factor where the bit is 0; a bit each is at 15 and 31. naga has no bitcast to f16; the way over f32 costs nothing.
fn signed4(f: u32, g: u32, bits: u32, next_bits: u32) -> vec4<f16> {
    let a = f ^ (bits & 0x80008000u);
    let b = g ^ (next_bits & 0x80008000u);
    return vec4<f16>(vec4<f32>(unpack2x16float(a), unpack2x16float(b)));
}

fn stash_signs(slot: u32, f: Factors, bits: u32) {
    let z = even_then_odd(bits);
    tile_w[slot] = signed4(f.f0, f.f1, z << 15u, z << 14u);
    tile_w[slot + 1u] = signed4(f.f2, f.f3, z << 13u, z << 12u);
    tile_w[slot + 2u] = signed4(f.f4, f.f5, z << 11u, z << 10u);
    tile_w[slot + 3u] = signed4(f.f6, f.f7, z << 9u, z << 8u);
    tile_w[slot + 4u] = signed4(f.f8, f.f9, z << 7u, z << 6u);
    tile_w[slot + 5u] = signed4(f.f10, f.f11, z << 5u, z << 4u);
    tile_w[slot + 6u] = signed4(f.f12, f.f13, z << 3u, z << 2u);
    tile_w[slot + 7u] = signed4(f.f14, f.f15, z << 1u, z);
}
