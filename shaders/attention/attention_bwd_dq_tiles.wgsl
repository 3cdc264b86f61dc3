// attention_bwd_dq_tiles: attention_bwd_dq by register tiles, 64 queries a workgroup against 32 keys at a time; for GPUs
// bind 0  in   q      f32[N, H, D]
// bind 1  in   k      f32[N, KV, D]
// bind 2  in   v      f32[N, KV, D]
// bind 3  in   dout   f32[N, H, D]
// bind 4  in   lse    f32[N, H]
// bind 5  in   delta  f32[N, H]
// bind 6  out  dq     f32[N, H, D]
// const   D
// grid    N // T * H * cdiv(T, 64)
// numerics  f32; keys in order
// see     attention_bwd_dq.wgsl, lib/attention_pairs.wgsl

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> dout: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> delta: array<f32>;
@group(0) @binding(6) var<storage, read_write> dq: array<vec4<f32>>;
@group(0) @binding(7) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/attention_pairs.wgsl

fn statistic(lane: u32, row: u32) -> f32 {
    if (lane < OTHER) {
        return lse[row];
    }
    return delta[row];
}

fn weights_of(score: vec4<f32>, z: vec4<f32>, key: u32, queries: vec4<u32>) -> vec4<f32> {
    return exp(select(vec4<f32>(LOW), score * p.scale - z, vec4<u32>(key) <= queries));
}

fn put(t: u32, at: u32, sum: vec4<f32>) {
    if (t < p.T) {
        dq[at] = sum * p.scale;
    }
}

fn put4(t: u32, at: u32, sum: mat4x4<f32>) {
    let stride = p.H * ROW;
    put(t, at, sum[0]);
    put(t + 1u, at + stride, sum[1]);
    put(t + 2u, at + 2u * stride, sum[2]);
    put(t + 3u, at + 3u * stride, sum[3]);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let tiles = (p.T + QUERIES - 1u) / QUERIES;
    let index = group_index(group, groups);
    let heads = p.N / p.T * p.H;
    let rank = index / heads;
    if (rank >= tiles) {
        return;
    }
    let first = (tiles - 1u - rank) * QUERIES;  // the last queries have the most keys: they start first
    let head = index % heads % p.H;
    let window = index % heads / p.H * p.T;  // its first row
    let kv_head = head / (p.H / p.KV);
    let query_at = query_start(lane, window, first, head);
    let last = p.T - 1u;
    let queries = min(first + 4u * pair_query(lane) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(last));
    let rows = (window + queries) * p.H + head;
    let given = vec4<f32>(
        statistic(lane, rows.x),
        statistic(lane, rows.y),
        statistic(lane, rows.z),
        statistic(lane, rows.w),
    );
    let col = lane % 64u;
    let own = lane / 64u;  // of the four sixteens of queries
    let mine_k = 4u * pair_key(lane);
    let region = mine_k / 16u;  // of the tile, a key a row: the weights, then their gradients
    let row = mine_k % 16u;
    let pq = pair_query(lane);

    var sums = Sums();
    for (var start = 0u; start < min(first + QUERIES, p.T); start += KEYS) {
        let products = transpose(pairs(lane, query_at, key_start(lane, window, start, kv_head)));
        workgroupBarrier();  // the slices have been read
        if (lane < OTHER) {
            let key = start + mine_k;
            tile[region][row][pq / 4u][pq % 4u] = weights_of(products[0], given, key, queries);
            tile[region][row + 1u][pq / 4u][pq % 4u] = weights_of(products[1], given, key + 1u, queries);
            tile[region][row + 2u][pq / 4u][pq % 4u] = weights_of(products[2], given, key + 2u, queries);
            tile[region][row + 3u][pq / 4u][pq % 4u] = weights_of(products[3], given, key + 3u, queries);
        }
        workgroupBarrier();  // the weights are there
        if (lane >= OTHER) {
            tile[region][row][pq / 4u][pq % 4u] *= products[0] - given;
            tile[region][row + 1u][pq / 4u][pq % 4u] *= products[1] - given;
            tile[region][row + 2u][pq / 4u][pq % 4u] *= products[2] - given;
            tile[region][row + 3u][pq / 4u][pq % 4u] *= products[3] - given;
        }
        workgroupBarrier();  // and their gradients
        if (col < ROW) {
            let stride = p.KV * ROW;
            let at = (window * p.KV + kv_head) * ROW + col;
            var x = k[at + start * stride];
            var y = k[at + min(start + 1u, last) * stride];
            for (var i = 0u; i < KEYS; i += 2u) {
                let next_x = k[at + min(start + i + 2u, last) * stride];
                let next_y = k[at + min(start + i + 3u, last) * stride];
                sums = add_weighted(sums, i / 16u, i % 16u, own, x);
                sums = add_weighted(sums, i / 16u, i % 16u + 1u, own, y);
                x = next_x;
                y = next_y;
            }
        }
    }
    if (col >= ROW) {
        return;
    }
    let t = first + 16u * own;
    let stride = 4u * p.H * ROW;
    let at = ((window + t) * p.H + head) * ROW + col;
    put4(t, at, sums.a);
    put4(t + 4u, at + stride, sums.b);
    put4(t + 8u, at + 2u * stride, sums.c);
    put4(t + 12u, at + 3u * stride, sums.d);
}
