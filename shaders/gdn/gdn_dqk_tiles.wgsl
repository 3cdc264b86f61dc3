// gdn_dqk_tiles: dq and dk of every value head, and the rest of dlog_decay; one workgroup per chunk, 128 columns at a time
// bind 0  in     q           f32[N, Hk, Dk]
// bind 1  in     k           f32[N, Hk, Dk]
// bind 2  in     dpairs      f32[N, Hv, 2, L]
// bind 3  in     reads       f32[N, Hv, 3, Dk]
// bind 4  in     carry       f32[N, Hv]
// bind 5  out    dq          f32[N, Hv, Dk]
// bind 6  out    dk          f32[N, Hv, Dk]
// bind 7  inout  dlog_decay  f32[N, Hv]
// const   DK  head dim; L tokens per chunk: 32
// grid    B * Hv * NC
// numerics  f32, sums in a fixed order; log_decay_r collects only terms that its decay multiplies
// see     gdn_dqk.wgsl, lib/gdn_tiles.wgsl

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> dpairs: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> reads: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> carry: array<f32>;
@group(0) @binding(5) var<storage, read_write> dq: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> dk: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> dlog_decay: array<f32>;
@group(0) @binding(8) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/gdn_tiles.wgsl

const COLS = DK / 4u;  // in fours
const KK = 0u;  // the two kinds of dpairs
const QK = 1u;

var<workgroup> onward: array<f32, L>;  // what all decays from the chunk's start up to token t multiply
var<workgroup> away: array<f32, L>;    // what all decays behind token t multiply

struct Chunk {
    head: u32,  // of its first token
    row: u32,   // in q and k
    last: u32,
}

fn q4(chunk: Chunk, t: u32, col: u32) -> vec4<f32> {
    if (t > chunk.last || col >= COLS) {
        return vec4<f32>();
    }
    return q[(chunk.row + t * p.Hk) * COLS + col];
}

fn k4(chunk: Chunk, t: u32, col: u32) -> vec4<f32> {
    if (t > chunk.last || col >= COLS) {
        return vec4<f32>();
    }
    return k[(chunk.row + t * p.Hk) * COLS + col];
}

fn q16(chunk: Chunk, t: u32, col: u32) -> mat4x4<f32> {
    return mat4x4<f32>(q4(chunk, t, col), q4(chunk, t + 1u, col), q4(chunk, t + 2u, col), q4(chunk, t + 3u, col));
}

fn k16(chunk: Chunk, t: u32, col: u32) -> mat4x4<f32> {
    return mat4x4<f32>(k4(chunk, t, col), k4(chunk, t + 1u, col), k4(chunk, t + 2u, col), k4(chunk, t + 3u, col));
}

fn read4(chunk: Chunk, kind: u32, t: u32, col: u32) -> vec4<f32> {
    if (t > chunk.last || col >= COLS) {
        return vec4<f32>();
    }
    return reads[((chunk.head + t * p.Hv) * 3u + kind) * COLS + col];
}

fn read16(chunk: Chunk, kind: u32, t: u32, col: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        read4(chunk, kind, t, col),
        read4(chunk, kind, t + 1u, col),
        read4(chunk, kind, t + 2u, col),
        read4(chunk, kind, t + 3u, col),
    );
}

// The products of t with s, ..., s + 3; 0 for those that lie behind t.
fn pair4(chunk: Chunk, kind: u32, t: u32, s: u32) -> vec4<f32> {
    if (t > chunk.last) {
        return vec4<f32>();
    }
    return dpairs[((chunk.head + t * p.Hv) * 2u + kind) * (L / 4u) + s / 4u];
}

fn pair(chunk: Chunk, kind: u32, t: u32, s: u32) -> f32 {
    if (t > chunk.last) {
        return 0.0;
    }
    return dpairs[((chunk.head + t * p.Hv) * 2u + kind) * (L / 4u) + s / 4u][s % 4u];
}

// The products of t, ..., t + 3 with s.
fn pair4_of(chunk: Chunk, kind: u32, t: u32, s: u32) -> vec4<f32> {
    return vec4<f32>(
        pair(chunk, kind, t, s),
        pair(chunk, kind, t + 1u, s),
        pair(chunk, kind, t + 2u, s),
        pair(chunk, kind, t + 3u, s),
    );
}

fn put_q(chunk: Chunk, t: u32, col: u32, sum: vec4<f32>) {
    if (t <= chunk.last && col < COLS) {
        dq[(chunk.head + t * p.Hv) * COLS + col] = sum;
    }
}

fn put_q4(chunk: Chunk, t: u32, col: u32, sums: mat4x4<f32>) {
    put_q(chunk, t, col, sums[0]);
    put_q(chunk, t + 1u, col, sums[1]);
    put_q(chunk, t + 2u, col, sums[2]);
    put_q(chunk, t + 3u, col, sums[3]);
}

fn put_k(chunk: Chunk, t: u32, col: u32, sum: vec4<f32>) {
    if (t <= chunk.last && col < COLS) {
        dk[(chunk.head + t * p.Hv) * COLS + col] = sum;
    }
}

fn put_k4(chunk: Chunk, t: u32, col: u32, sums: mat4x4<f32>) {
    put_k(chunk, t, col, sums[0]);
    put_k(chunk, t + 1u, col, sums[1]);
    put_k(chunk, t + 2u, col, sums[2]);
    put_k(chunk, t + 3u, col, sums[3]);
}

fn dots(a: mat4x4<f32>, b: mat4x4<f32>) -> vec4<f32> {
    return vec4<f32>(dot(a[0], b[0]), dot(a[1], b[1]), dot(a[2], b[2]), dot(a[3], b[3]));
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let id = group_index(group, groups);
    let scan = id / p.NC;
    let c = id % p.NC;
    let b = scan / p.Hv;
    let h = scan % p.Hv;
    if (b * p.T >= p.N) {
        return;
    }
    let n0 = b * p.T + c * L;
    let chunk = Chunk(n0 * p.Hv + h, n0 * p.Hk + h / (p.Hv / p.Hk), min(L, p.T - c * L) - 1u);
    let t = lane / 32u * 8u;        // rows of the results
    let load_t = lane / 4u;         // row and first column of the inputs' tile
    let load_c = lane % 4u * 4u;
    let load_s = lane / 32u * 4u;   // first of four rows of the weights' tile
    var in_top = vec4<f32>();       // this invocation's part of onward and away, a token in each component
    var in_bottom = vec4<f32>();
    var out_top = vec4<f32>();
    var out_bottom = vec4<f32>();
    for (var first = 0u; first < COLS; first += WIDTH / 4u) {
        let col = first + lane % 32u;
        var dqs = Sums(read16(chunk, 0u, t, col), read16(chunk, 0u, t + 4u, col));
        var dks = Sums(read16(chunk, 1u, t, col), read16(chunk, 1u, t + 4u, col));
        let away_top = read16(chunk, 2u, t, col);
        let away_bottom = read16(chunk, 2u, t + 4u, col);
        let k_top = k16(chunk, t, col);
        let k_bottom = k16(chunk, t + 4u, col);
        in_top += dots(q16(chunk, t, col), dqs.top) + dots(k_top, dks.top);
        in_bottom += dots(q16(chunk, t + 4u, col), dqs.bottom) + dots(k_bottom, dks.bottom);
        out_top += dots(k_top, away_top);
        out_bottom += dots(k_bottom, away_bottom);
        dks = Sums(dks.top + away_top, dks.bottom + away_bottom);
        for (var s = 0u; s < L; s += DEPTH) {
            put_weights(lane / 32u, lane % 32u, k16(chunk, s + load_s, col));
            put_inputs(lane, pair4(chunk, QK, load_t, s + load_c));
            workgroupBarrier();
            let both = pair4(chunk, KK, load_t, s + load_c) + pair4_of(chunk, KK, s + load_c, load_t);
            dqs = plus_tiles(dqs, lane);
            workgroupBarrier();
            put_inputs(lane, both);
            workgroupBarrier();
            let next_q = q16(chunk, s + load_s, col);
            let after = pair4_of(chunk, QK, s + load_c, load_t);
            dks = plus_tiles(dks, lane);
            workgroupBarrier();
            put_weights(lane / 32u, lane % 32u, next_q);
            put_inputs(lane, after);
            workgroupBarrier();
            dks = plus_tiles(dks, lane);
            workgroupBarrier();
        }
        put_q4(chunk, t, col, dqs.top);
        put_q4(chunk, t + 4u, col, dqs.bottom);
        put_k4(chunk, t, col, dks.top);
        put_k4(chunk, t + 4u, col, dks.bottom);
    }
    // four tokens of onward or away in each row of 32 parts; eight invocations add those of a row, then one adds theirs
    tile_w[0u][lane] = in_top;
    tile_w[1u][lane] = in_bottom;
    tile_w[2u][lane] = out_top;
    tile_w[3u][lane] = out_bottom;
    workgroupBarrier();
    let part = lane / 8u % 4u * 32u + lane % 8u;
    let parts = tile_w[lane / 32u][part] + tile_w[lane / 32u][part + 8u] + tile_w[lane / 32u][part + 16u]
        + tile_w[lane / 32u][part + 24u];
    workgroupBarrier();
    tile_w[0u][lane] = parts;
    workgroupBarrier();
    if (lane < 16u) {
        var sum = vec4<f32>();
        for (var i = 0u; i < 8u; i++) {
            sum += tile_w[0u][lane * 8u + i];
        }
        let at = lane % 4u * 8u + lane / 4u % 2u * 4u;
        if (lane < 8u) {
            onward[at] = sum.x;
            onward[at + 1u] = sum.y;
            onward[at + 2u] = sum.z;
            onward[at + 3u] = sum.w;
        } else {
            away[at] = sum.x;
            away[at + 1u] = sum.y;
            away[at + 2u] = sum.z;
            away[at + 3u] = sum.w;
        }
    }
    workgroupBarrier();
    if (lane <= chunk.last) {
        let head = chunk.head + lane * p.Hv;
        var sum = dlog_decay[head] + carry[head];
        for (var s = 0u; s <= chunk.last; s++) {
            sum += select(away[s], onward[s], s >= lane);
        }
        dlog_decay[head] = sum;
    }
}
