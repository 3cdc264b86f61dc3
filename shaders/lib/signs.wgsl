// signs: four neighbouring signs of a row as truth values; words u32[M, W], least significant bit first, 1 is +1

fn signs4(m: u32, k: u32) -> vec4<bool> {
    let bits = w[m * p.W + k / 32u] >> (k % 32u);
    return (vec4<u32>(bits) & vec4<u32>(1u, 2u, 4u, 8u)) != vec4<u32>();
}
