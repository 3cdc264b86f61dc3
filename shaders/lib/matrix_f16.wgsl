// matrix_f16: dense weights for matrix units, in memory as eight f16 a vec4<u32>

struct Weights {
    w0: vec4<u32>, w1: vec4<u32>, w2: vec4<u32>, w3: vec4<u32>,
}

fn weights8(m: u32, k: u32) -> vec4<u32> {
    var at = (m * p.K + k) / 8u;
    if (!WHOLE) {
        at = (min(m, p.M - 1u) * p.K + min(k, p.K - 8u)) / 8u;
    }
    return w[at];
}

// To f32 and back is no work: compilers see that it changes nothing. naga has no bitcast to f16.
fn stash_weights8(slot: u32, v: vec4<u32>) {
    tile_w[slot] = vec4<f16>(vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y)));
    tile_w[slot + 1u] = vec4<f16>(vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w)));
}

// Dense weights have no factors, neither of results nor of inputs.
fn fetch_factors(lane: u32, col: u32) -> u32 {
    return 0u;
}

fn input_scale4(c: u32) -> vec4<f32> {
    return vec4<f32>(1.0);
}
