// latents: f16 values in the halves of u32 words, converted by integer arithmetic, and the random numbers of a sign step
// The conversions keep subnormals, which drivers may flush. A word holds columns 2i and 2i + 1 of a row.

const UNIT_FROM: u32 = 0x38000000u;  // what the exponents of f32 and f16 differ by, in an f32's bits

fn fmix32(x: u32) -> u32 {
    var h = x;
    h = (h ^ (h >> 16u)) * 0x85ebca6bu;
    h = (h ^ (h >> 13u)) * 0xc2b2ae35u;
    return h ^ (h >> 16u);
}

// `index`: the sign's place in its matrix, row-major.
fn random_bits(key: u32, step: u32, index: u32) -> u32 {
    return fmix32(fmix32(index ^ key) + step * 0x9e3779b9u);
}

fn half_value(half: u32) -> f32 {
    let magnitude = half & 0x7fffu;
    let normal = bitcast<f32>((magnitude << 13u) + UNIT_FROM);
    let value = select(normal, f32(magnitude) * 5.9604644775390625e-08, magnitude < 0x400u);
    return select(value, -value, (half & 0x8000u) != 0u);
}

fn half_values(word: u32) -> vec2<f32> {
    return vec2<f32>(half_value(word & 0xffffu), half_value(word >> 16u));
}

// |x| in units of 2^-13 of an f16's last place; |x| <= 65504
fn half_units(x: f32) -> u32 {
    let magnitude = abs(x);
    let small = u32(min(magnitude, 6.103515625e-05) * 137438953472.0);
    return select(bitcast<u32>(magnitude) - UNIT_FROM, small, magnitude < 6.103515625e-05);
}

fn half_sign(x: f32) -> u32 {
    return (bitcast<u32>(x) >> 16u) & 0x8000u;
}

// f16 bits of x, away from zero with the probability of what does not fit; `noise` is below 2^13
fn half_stochastic(x: f32, noise: u32) -> u32 {
    return ((half_units(x) + noise) >> 13u) | half_sign(x);
}

// f16 bits of x, to the nearest, ties to even
fn half_nearest(x: f32) -> u32 {
    return half_stochastic(x, 0xfffu + ((half_units(x) >> 13u) & 1u));
}
