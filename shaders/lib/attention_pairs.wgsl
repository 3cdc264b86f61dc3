// attention_pairs: scores and weight gradients of 64 queries x 32 keys, for the attention backward kernels on GPUs
// Invocations 0 to 127 multiply q by k, the others dout by v.

//!include lib/attention_tiles.wgsl

const QUERIES: u32 = 64u;
const KEYS: u32 = 32u;
const OTHER: u32 = 128u;  // first invocation of the second half
const Q: u32 = 0u;  // regions of the tile
const DOUT: u32 = 1u;
const K: u32 = 2u;
const V: u32 = 3u;

// Four keys of an invocation: 4 * pair_key(lane) and behind. Each four lanes are a square: their reads merge.
fn pair_key(lane: u32) -> u32 {
    return lane / 2u % 4u + lane / 16u % 2u * 4u;
}

fn pair_query(lane: u32) -> u32 {
    return lane % 2u + lane / 8u % 2u * 2u + lane / 32u % 4u * 4u;
}

// Place of the vec4 that an invocation loads, in the first slice.
fn query_start(lane: u32, window: u32, first: u32, head: u32) -> u32 {
    let query = min(first + slot_row(lane / STEP, QUERIES / 4u), p.T - 1u);  // masked behind the window
    return ((window + query) * p.H + head) * ROW + lane % STEP;
}

fn key_start(lane: u32, window: u32, first: u32, kv_head: u32) -> u32 {
    let key = min(first + slot_row(lane % OTHER / STEP, KEYS / 4u), p.T - 1u);
    return ((window + key) * p.KV + kv_head) * ROW + lane % STEP;
}

fn key_or_value(lane: u32, at: u32) -> vec4<f32> {
    if (lane < OTHER) {
        return k[at];
    }
    return v[at];
}

// Products of four queries (columns) with four keys (rows). `tile` must be free after a barrier, and is still read behind.
fn pairs(lane: u32, query_at: u32, key_at: u32) -> mat4x4<f32> {
    let slot = lane / STEP;
    let c = lane % STEP;
    let queries = select(DOUT, Q, lane < OTHER);
    let keys = select(V, K, lane < OTHER);
    let mine_q = pair_query(lane);
    let mine_k = pair_key(lane);
    var next_q = q[query_at];
    var next_dout = dout[query_at];
    var next_key = key_or_value(lane, key_at);
    var sum = mat4x4<f32>();
    for (var step = STEP; step <= ROW; step += STEP) {
        workgroupBarrier();  // the slices have been read
        put_slice(Q, QUERIES, slot, c, next_q);
        put_slice(DOUT, QUERIES, slot, c, next_dout);
        put_slice(keys, KEYS, slot % KEYS, c, next_key);
        workgroupBarrier();  // the slices are filled
        if (step < ROW) {
            next_q = q[query_at + step];
            next_dout = dout[query_at + step];
            next_key = key_or_value(lane, key_at + step);
        }
        sum = add_dots(sum, rows_of_64(queries, 0u, mine_q), rows_of_32(keys, 0u, mine_k));
        sum = add_dots(sum, rows_of_64(queries, 1u, mine_q), rows_of_32(keys, 1u, mine_k));
        sum = add_dots(sum, rows_of_64(queries, 2u, mine_q), rows_of_32(keys, 2u, mine_k));
        sum = add_dots(sum, rows_of_64(queries, 3u, mine_q), rows_of_32(keys, 3u, mine_k));
    }
    return sum;
}
