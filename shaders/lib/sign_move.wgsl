// sign_move: the latents of a matrix [R, C] move by -eta·u, rounded stochastically to f16; bits that they leave behind flip
// An invocation has the two latents of a word; sixteen of them share a word of signs. The shader's `directions` gives u.

//!include lib/group_index.wgsl
//!include lib/latents.wgsl
//!include lib/sign_hyper.wgsl

var<workgroup> changed: array<u32, WG>;
var<workgroup> counted: array<atomic<u32>, 3>;

struct Moved {
    half: u32,
    flip: u32,
    saturated: u32,
    clamped: u32,
}

fn moved(half: u32, bit: u32, direction: f32, index: u32) -> Moved {
    let most = hyper[CLAMP];
    let target_value = half_value(half) - hyper[ETA] * clamp(direction, -most, most);
    let noise = random_bits(p.key, u32(hyper[STEP]), index) & 0x1fffu;
    var after = half_stochastic(clamp(target_value, -1.0, 1.0), noise);
    if ((after & 0x7fffu) == 0u) {
        after = (half & 0x8000u) | 1u;  // never zero: it would have no sign
    }
    let value = half_value(after);
    let flips = select(value > hyper[HYST], value < -hyper[HYST], bit == 1u);
    return Moved(after, u32(flips), u32(abs(target_value) > 1.0), u32(abs(direction) > most));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    let row = i / (16u * p.W);
    let col = 2u * (i % (16u * p.W));
    let live = row < p.R && col < p.C && atomicLoad(&tally[STOP]) == 0u;
    let word = row * p.W + col / 32u;
    if (lane < 3u) {
        atomicStore(&counted[lane], 0u);
    }
    changed[lane] = 0u;
    workgroupBarrier();
    if (live) {
        let u = directions(i, row, col);
        let pair = bits[word] >> (col % 32u);
        let index = row * p.C + col;
        let a = moved(lat[i] & 0xffffu, pair & 1u, u.x, index);
        let b = moved(lat[i] >> 16u, (pair >> 1u) & 1u, u.y, index + 1u);
        lat[i] = a.half | (b.half << 16u);
        if (i == 0u) {
            atomicAdd(&tally[STEPPED], 1u);
        }
        changed[lane] = (a.flip | (b.flip << 1u)) << (col % 32u);
        if (a.flip + b.flip > 0u) {
            atomicAdd(&counted[0], a.flip + b.flip);
        }
        if (a.saturated + b.saturated > 0u) {
            atomicAdd(&counted[1], a.saturated + b.saturated);
        }
        if (a.clamped + b.clamped > 0u) {
            atomicAdd(&counted[2], a.clamped + b.clamped);
        }
    }
    workgroupBarrier();
    if (live && lane % 16u == 0u) {
        var flips = 0u;
        for (var j = 0u; j < 16u; j++) {
            flips |= changed[lane + j];
        }
        if (flips != 0u) {
            bits[word] ^= flips;
        }
    }
    if (lane < 3u) {
        let count = atomicLoad(&counted[lane]);
        let slots = vec3<u32>(FLIPS + p.slot, SATURATED, CLAMPED);
        if (count > 0u) {
            atomicAdd(&tally[slots[lane]], count);
        }
    }
}
