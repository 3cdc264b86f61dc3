// topk: ids of the K largest logits of every row, descending, the lower id first on ties, and their softmax among themselves
// bind 0  in   logits  f32[R, V]
// bind 1  out  ids     u32[R, K]
// bind 2  out  probs   f32[R, K]  sums to 1
// const   WG  invocations per row, a power of two
// grid    R
// numerics  ids are exact; NaN counts as the largest, so that it shows in probs; f32 sum in a fixed order
//
// Radix selection: an element's rank word pair (key, ~id) is distinct, so the K-th largest pair cuts the row in exactly K
// elements and the rest. Its bytes are found from the top, one histogram each, until a cut falls between two bins.

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> probs: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_sum.wgsl

const MAX_K = 256u;
const BINS = 256u;

struct Cut {
    digit: u32,
    wanted: u32,  // elements still to take from the bin of `digit`
    count: u32,   // elements in that bin
}

var<workgroup> bins: array<atomic<u32>, BINS>;
var<workgroup> cut: Cut;
var<workgroup> found: atomic<u32>;
var<workgroup> found_key: array<u32, MAX_K>;
var<workgroup> found_id: array<u32, MAX_K>;
var<workgroup> sorted_id: array<u32, MAX_K>;

// Unsigned order of keys = order of floats.
fn key_of(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return 0xffffffffu;
    }
    if (magnitude == 0u) {
        return 0x80000000u;  // -0 ties with 0
    }
    return select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
}

// The pair's bytes above the cut so far: `mask` selects them, `value` holds them.
fn agrees(pair: vec2<u32>, value: vec2<u32>, mask: vec2<u32>) -> bool {
    return all((pair & mask) == value);
}

fn at_least(pair: vec2<u32>, value: vec2<u32>, mask: vec2<u32>) -> bool {
    let masked = pair & mask;
    return masked.x > value.x || (masked.x == value.x && masked.y >= value.y);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_index(group, groups);
    if (row >= p.R) {
        return;
    }
    let base = row * p.V;

    var value = vec2<u32>(0u);
    var mask = vec2<u32>(0u);
    var wanted = p.K;
    for (var byte = 0u; byte < 8u; byte++) {
        let shift = 24u - 8u * (byte & 3u);
        for (var b = lane; b < BINS; b += WG) {
            atomicStore(&bins[b], 0u);
        }
        workgroupBarrier();
        for (var v = lane; v < p.V; v += WG) {
            let pair = vec2<u32>(key_of(logits[base + v]), ~v);
            if (agrees(pair, value, mask)) {
                atomicAdd(&bins[(select(pair.y, pair.x, byte < 4u) >> shift) & 255u], 1u);
            }
        }
        workgroupBarrier();
        if (lane == 0u) {
            var left = wanted;
            var digit = BINS - 1u;
            var count = atomicLoad(&bins[digit]);
            while (count < left && digit > 0u) {
                left -= count;
                digit--;
                count = atomicLoad(&bins[digit]);
            }
            cut = Cut(digit, left, count);
        }
        let here = workgroupUniformLoad(&cut);
        wanted = here.wanted;
        if (byte < 4u) {
            value.x |= here.digit << shift;
            mask.x |= 255u << shift;
        } else {
            value.y |= here.digit << shift;
            mask.y |= 255u << shift;
        }
        if (here.count == wanted) {
            break;  // the whole bin is taken
        }
    }

    if (lane == 0u) {
        atomicStore(&found, 0u);
    }
    workgroupBarrier();
    for (var v = lane; v < p.V; v += WG) {
        let pair = vec2<u32>(key_of(logits[base + v]), ~v);
        if (at_least(pair, value, mask)) {
            let slot = atomicAdd(&found, 1u);
            found_key[slot] = pair.x;
            found_id[slot] = v;
        }
    }
    workgroupBarrier();

    // The slots' order is accidental; ranks are not.
    for (var i = lane; i < p.K; i += WG) {
        let key = found_key[i];
        let id = found_id[i];
        var rank = 0u;
        for (var j = 0u; j < p.K; j++) {
            rank += u32(found_key[j] > key || (found_key[j] == key && found_id[j] < id));
        }
        sorted_id[rank] = id;
    }
    workgroupBarrier();

    let top = logits[base + sorted_id[0]];
    var sum = 0.0;
    for (var k = lane; k < p.K; k += WG) {
        sum += exp(logits[base + sorted_id[k]] - top);
    }
    let total = group_sum(sum, lane);
    for (var k = lane; k < p.K; k += WG) {
        ids[row * p.K + k] = sorted_id[k];
        probs[row * p.K + k] = exp(logits[base + sorted_id[k]] - top) / total;
    }
}
