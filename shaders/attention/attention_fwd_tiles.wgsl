// attention_fwd_tiles: attention_fwd by register tiles, 64 queries a workgroup against 64 keys at a time; for GPUs
// bind 0  in   q    f32[N, H, D]
// bind 1  in   k    f32[N, KV, D]
// bind 2  in   v    f32[N, KV, D]
// bind 3  out  o    f32[N, H, D]
// bind 4  out  lse  f32[N, H]      log-sum-exp of the scaled scores, kept for the backward
// const   D
// grid    N // T * H * cdiv(T, 64)
// numerics  f32; blocks of 64 keys in order, in each the keys in order
// see     attention_fwd.wgsl, lib/attention_tiles.wgsl

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> o: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/attention_tiles.wgsl

const SIDE: u32 = 64u;  // queries of a workgroup, and keys of a block
const FOURS: u32 = SIDE / 4u;
const FADES: u32 = 1u;  // a region of the tile, the one in front holds maxima of [FOURS of keys, FOURS of queries]

// Products of four queries (columns) with four keys (rows). `tile` must be free, and is still read behind.
fn scores_of(lane: u32, tx: u32, ty: u32, query_at: u32, key_at: u32) -> mat4x4<f32> {
    var next_q = q[query_at];
    var next_k = k[key_at];
    var turn = 0u;  // the slices take turns: one is filled while the other is still read
    var sum = mat4x4<f32>();
    for (var step = STEP; step <= ROW; step += STEP) {
        put_slice(turn, SIDE, lane / STEP, lane % STEP, next_q);
        put_slice(turn + 1u, SIDE, lane / STEP, lane % STEP, next_k);
        workgroupBarrier();  // the slices are filled
        if (step < ROW) {
            next_q = q[query_at + step];
            next_k = k[key_at + step];
        }
        sum = add_dots(sum, rows_of_64(turn, 0u, ty), rows_of_64(turn + 1u, 0u, tx));
        sum = add_dots(sum, rows_of_64(turn, 1u, ty), rows_of_64(turn + 1u, 1u, tx));
        sum = add_dots(sum, rows_of_64(turn, 2u, ty), rows_of_64(turn + 1u, 2u, tx));
        sum = add_dots(sum, rows_of_64(turn, 3u, ty), rows_of_64(turn + 1u, 3u, tx));
        turn = 2u - turn;
    }
    return sum;
}

fn masked(score: vec4<f32>, keys: vec4<u32>, query: u32) -> vec4<f32> {
    return select(vec4<f32>(LOW), score * p.scale, keys <= vec4<u32>(query));
}

fn largest(x: vec4<f32>) -> f32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

fn total(x: vec4<f32>) -> f32 {
    return dot(x, vec4<f32>(1.0));
}

fn scaled(m: mat4x4<f32>, by: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(m[0] * by.x, m[1] * by.y, m[2] * by.z, m[3] * by.w);
}

fn scaled_rows(sums: Sums, four: u32) -> Sums {
    return Sums(
        scaled(sums.a, tile[FADES][0][four][0]),
        scaled(sums.b, tile[FADES][0][four][1]),
        scaled(sums.c, tile[FADES][0][four][2]),
        scaled(sums.d, tile[FADES][0][four][3]),
    );
}

fn put(t: u32, at: u32, sum: vec4<f32>) {
    if (t < p.T) {
        o[at] = sum;
    }
}

fn put4(t: u32, at: u32, sum: mat4x4<f32>) {
    let stride = p.H * ROW;
    put(t, at, sum[0]);
    put(t + 1u, at + stride, sum[1]);
    put(t + 2u, at + 2u * stride, sum[2]);
    put(t + 3u, at + 3u * stride, sum[3]);
}

fn put_lse(window: u32, t: u32, head: u32, value: f32) {
    if (t < p.T) {
        lse[(window + t) * p.H + head] = value;
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let tiles = (p.T + SIDE - 1u) / SIDE;
    let index = group_index(group, groups);
    let heads = p.N / p.T * p.H;
    let rank = index / heads;
    if (rank >= tiles) {
        return;
    }
    let first = (tiles - 1u - rank) * SIDE;  // the last queries have the most keys: they start first
    let head = index % heads % p.H;
    let window = index % heads / p.H * p.T;  // its first row
    let kv_head = head / (p.H / p.KV);
    let last = p.T - 1u;
    let loaded = slot_row(lane / STEP, FOURS);
    let query_at = ((window + min(first + loaded, last)) * p.H + head) * ROW + lane % STEP;
    // Each four lanes are a square of scores: their reads merge.
    let tx = lane / 2u % 4u + lane / 16u % 2u * 4u + lane / 128u * 8u;
    let ty = lane % 2u + lane / 8u % 2u * 2u + lane / 32u % 4u * 4u;
    let query = first + 4u * ty;
    let col = lane % 64u;
    let own = lane / 64u;  // of the four sixteens of queries

    var sums = Sums();
    var top = vec4<f32>(LOW);
    var mass = vec4<f32>();  // of this invocation's keys
    for (var start = 0u; start < min(first + SIDE, p.T); start += SIDE) {
        let key_at = ((window + min(start + loaded, last)) * p.KV + kv_head) * ROW + lane % STEP;
        workgroupBarrier();  // the weights have been read
        let products = scores_of(lane, tx, ty, query_at, key_at);
        let keys = start + 4u * tx + vec4<u32>(0u, 1u, 2u, 3u);
        let s0 = masked(products[0], keys, query);
        let s1 = masked(products[1], keys, query + 1u);
        let s2 = masked(products[2], keys, query + 2u);
        let s3 = masked(products[3], keys, query + 3u);
        workgroupBarrier();  // the slices have been read
        tile[0][tx][ty / 4u][ty % 4u] = vec4<f32>(largest(s0), largest(s1), largest(s2), largest(s3));
        workgroupBarrier();  // the maxima are there
        var new_top = top;
        for (var i = 0u; i < FOURS; i++) {
            new_top = max(new_top, tile[0][i][ty / 4u][ty % 4u]);
        }
        let fade = exp(top - new_top);
        top = new_top;
        if (tx == 0u) {
            tile[FADES][0][ty / 4u][ty % 4u] = fade;
        }
        let w0 = exp(s0 - top.x);
        let w1 = exp(s1 - top.y);
        let w2 = exp(s2 - top.z);
        let w3 = exp(s3 - top.w);
        mass = fma(mass, fade, vec4<f32>(total(w0), total(w1), total(w2), total(w3)));
        workgroupBarrier();  // the factors for the older sums are there
        sums = scaled_rows(sums, own);
        workgroupBarrier();  // they have been read
        let weights = transpose(mat4x4<f32>(w0, w1, w2, w3));
        tile[tx / 4u][tx % 4u * 4u][ty / 4u][ty % 4u] = weights[0];
        tile[tx / 4u][tx % 4u * 4u + 1u][ty / 4u][ty % 4u] = weights[1];
        tile[tx / 4u][tx % 4u * 4u + 2u][ty / 4u][ty % 4u] = weights[2];
        tile[tx / 4u][tx % 4u * 4u + 3u][ty / 4u][ty % 4u] = weights[3];
        workgroupBarrier();  // the weights are there
        if (col < ROW) {
            let stride = p.KV * ROW;
            let at = (window * p.KV + kv_head) * ROW + col;
            var x = v[at + start * stride];
            var y = v[at + min(start + 1u, last) * stride];
            for (var i = 0u; i < SIDE; i += 2u) {
                let next_x = v[at + min(start + i + 2u, last) * stride];
                let next_y = v[at + min(start + i + 3u, last) * stride];
                sums = add_weighted(sums, i / 16u, i % 16u, own, x);
                sums = add_weighted(sums, i / 16u, i % 16u + 1u, own, y);
                x = next_x;
                y = next_y;
            }
        }
    }
    workgroupBarrier();  // the weights have been read
    tile[0][tx][ty / 4u][ty % 4u] = mass;
    workgroupBarrier();  // every invocation's mass is there
    mass = vec4<f32>();
    for (var i = 0u; i < FOURS; i++) {
        mass += tile[0][i][ty / 4u][ty % 4u];
    }
    if (tx == 0u) {
        tile[FADES][0][ty / 4u][ty % 4u] = 1.0 / mass;
        let value = top + log(mass);
        put_lse(window, query, head, value.x);
        put_lse(window, query + 1u, head, value.y);
        put_lse(window, query + 2u, head, value.z);
        put_lse(window, query + 3u, head, value.w);
    }
    workgroupBarrier();  // the last factors are there
    if (col >= ROW) {
        return;
    }
    sums = scaled_rows(sums, own);
    let t = first + 16u * own;
    let stride = 4u * p.H * ROW;
    let at = ((window + t) * p.H + head) * ROW + col;
    put4(t, at, sums.a);
    put4(t + 4u, at + stride, sums.b);
    put4(t + 8u, at + 2u * stride, sums.c);
    put4(t + 12u, at + 3u * stride, sums.d);
}
