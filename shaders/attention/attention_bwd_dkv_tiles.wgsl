// attention_bwd_dkv_tiles: attention_bwd_dkv by register tiles, 32 keys a workgroup against 64 queries at a time; for GPUs
// bind 0  in   q      f32[N, H, D]
// bind 1  in   k      f32[N, KV, D]
// bind 2  in   v      f32[N, KV, D]
// bind 3  in   dout   f32[N, H, D]
// bind 4  in   lse    f32[N, H]
// bind 5  in   delta  f32[N, H]
// bind 6  out  dk     f32[N, KV, D]
// bind 7  out  dv     f32[N, KV, D]
// const   D
// grid    N // T * KV * cdiv(T, 32)
// numerics  f32; query heads in order, then blocks of queries from the last, in each the queries in order
// see     attention_bwd_dkv.wgsl, lib/attention_pairs.wgsl

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> dout: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> delta: array<f32>;
@group(0) @binding(6) var<storage, read_write> dk: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> dv: array<vec4<f32>>;
@group(0) @binding(8) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/attention_pairs.wgsl

const DSCORES: u32 = 2u;  // their first region of the tile; the weights are in front; two queries of 8 vec4 a row

fn put_pair(region: u32, lane: u32, i: u32, x: vec4<f32>) {
    let query = pair_query(lane);
    let keys = pair_key(lane);
    tile[region + query / 8u][query % 8u * 2u + i / 2u][i % 2u * 2u + keys / 4u][keys % 4u] = x;
}

fn weight(lane: u32, i: u32) -> vec4<f32> {
    let query = pair_query(lane);
    let keys = pair_key(lane);
    return tile[query / 8u][query % 8u * 2u + i / 2u][i % 2u * 2u + keys / 4u][keys % 4u];
}

// Softmax weights of an invocation's i-th query at its four keys.
fn weights_of(lane: u32, scores: mat4x4<f32>, i: u32, start: u32, row: u32, first: u32) -> vec4<f32> {
    let query = start + 4u * pair_query(lane) + i;
    let keys = first + 4u * pair_key(lane) + vec4<u32>(0u, 1u, 2u, 3u);
    let seen = (keys <= vec4<u32>(query)) & vec4<bool>(query < p.T);
    let z = lse[row + min(query, p.T - 1u) * p.H];
    return exp(select(vec4<f32>(LOW), scores[i] * p.scale - z, seen));
}

fn put(lane: u32, t: u32, at: u32, sum: vec4<f32>) {
    if (t >= p.T) {
        return;
    }
    if (lane < OTHER) {
        dv[at] = sum;
    } else {
        dk[at] = sum * p.scale;
    }
}

fn put4(lane: u32, t: u32, at: u32, sum: mat4x4<f32>) {
    let stride = p.KV * ROW;
    put(lane, t, at, sum[0]);
    put(lane, t + 1u, at + stride, sum[1]);
    put(lane, t + 2u, at + 2u * stride, sum[2]);
    put(lane, t + 3u, at + 3u * stride, sum[3]);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let tiles = (p.T + KEYS - 1u) / KEYS;
    let index = group_index(group, groups);
    let heads = p.N / p.T * p.KV;
    let rank = index / heads;
    if (rank >= tiles) {
        return;
    }
    // The first keys have the most queries: they start first, and the last keys join them.
    let early = (tiles + 1u) / 2u;
    let first = select(tiles - 1u - (rank - early), rank, rank < early) * KEYS;
    let kv_head = index % heads % p.KV;
    let window = index % heads / p.KV * p.T;  // its first row
    let key_at = key_start(lane, window, first, kv_head);
    let col = lane % 64u;
    let own = lane / 64u % 2u;  // of the two sixteens of keys
    let last = p.T - 1u;
    let rep = p.H / p.KV;

    var sums = Sums();
    for (var head = kv_head * rep; head < (kv_head + 1u) * rep; head++) {
        let rows = window * p.H + head;
        for (var left = last / QUERIES + 1u; left > first / QUERIES; left--) {
            let start = (left - 1u) * QUERIES;
            let scores = pairs(lane, query_start(lane, window, start, head), key_at);
            workgroupBarrier();  // the slices have been read
            if (lane < OTHER) {
                put_pair(0u, lane, 0u, weights_of(lane, scores, 0u, start, rows, first));
                put_pair(0u, lane, 1u, weights_of(lane, scores, 1u, start, rows, first));
                put_pair(0u, lane, 2u, weights_of(lane, scores, 2u, start, rows, first));
                put_pair(0u, lane, 3u, weights_of(lane, scores, 3u, start, rows, first));
            }
            workgroupBarrier();  // the weights are there
            if (lane >= OTHER) {
                let t = start + 4u * pair_query(lane);
                let d0 = delta[rows + min(t, last) * p.H];
                let d1 = delta[rows + min(t + 1u, last) * p.H];
                let d2 = delta[rows + min(t + 2u, last) * p.H];
                let d3 = delta[rows + min(t + 3u, last) * p.H];
                put_pair(DSCORES, lane, 0u, weight(lane, 0u) * (scores[0] - d0));
                put_pair(DSCORES, lane, 1u, weight(lane, 1u) * (scores[1] - d1));
                put_pair(DSCORES, lane, 2u, weight(lane, 2u) * (scores[2] - d2));
                put_pair(DSCORES, lane, 3u, weight(lane, 3u) * (scores[3] - d3));
            }
            workgroupBarrier();  // and their gradients
            if (col < ROW) {
                let at = rows * ROW + col;
                let stride = p.H * ROW;
                if (lane < OTHER) {
                    var x = dout[at + start * stride];
                    var y = dout[at + min(start + 1u, last) * stride];
                    for (var i = 0u; i < QUERIES; i += 2u) {
                        let next_x = dout[at + min(start + i + 2u, last) * stride];
                        let next_y = dout[at + min(start + i + 3u, last) * stride];
                        sums = add_weighted(sums, i / 32u, i / 2u % 16u, own, x);
                        sums = add_weighted(sums, i / 32u, i / 2u % 16u, own + 2u, y);
                        x = next_x;
                        y = next_y;
                    }
                } else {
                    var x = q[at + start * stride];
                    var y = q[at + min(start + 1u, last) * stride];
                    for (var i = 0u; i < QUERIES; i += 2u) {
                        let next_x = q[at + min(start + i + 2u, last) * stride];
                        let next_y = q[at + min(start + i + 3u, last) * stride];
                        sums = add_weighted(sums, DSCORES + i / 32u, i / 2u % 16u, own, x);
                        sums = add_weighted(sums, DSCORES + i / 32u, i / 2u % 16u, own + 2u, y);
                        x = next_x;
                        y = next_y;
                    }
                }
            }
        }
    }
    if (col >= ROW) {
        return;
    }
    let t = first + 16u * own;
    let stride = 4u * p.KV * ROW;
    let at = ((window + t) * p.KV + kv_head) * ROW + col;
    put4(lane, t, at, sums.a);
    put4(lane, t + 4u, at + stride, sums.b);
    put4(lane, t + 8u, at + 2u * stride, sums.c);
    put4(lane, t + 12u, at + 3u * stride, sums.d);
}
