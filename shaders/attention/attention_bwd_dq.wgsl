// attention_bwd_dq: gradient at q of causal attention, scores recomputed; one workgroup per window, head and query tile
// bind 0  in   q      f32[N, H, D]
// bind 1  in   k      f32[N, KV, D]
// bind 2  in   v      f32[N, KV, D]
// bind 3  in   dout   f32[N, H, D]
// bind 4  in   lse    f32[N, H]
// bind 5  in   delta  f32[N, H]
// bind 6  out  dq     f32[N, H, D]
// const   D, WG invocations, S lanes a query (each holds every S-th vec4 of the head)
// grid    N // T * H * cdiv(T, WG // S)
// numerics  f32; keys in order, four at a time
// see     attention_fwd.wgsl, attention_bwd_dkv.wgsl

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> dout: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> delta: array<f32>;
@group(0) @binding(6) var<storage, read_write> dq: array<vec4<f32>>;
@group(0) @binding(7) var<uniform> p: Params;

//!include lib/group_index.wgsl

const ROW: u32 = D / 4u;  // vec4 of a head
const SLOTS: u32 = (ROW + S - 1u) / S;  // of them in one lane
const QUERIES: u32 = WG / S;
const KEYS: u32 = 4u;
const LOW: f32 = -1e30;  // score of a masked key

var<workgroup> k_tile: array<vec4<f32>, KEYS * ROW>;
var<workgroup> v_tile: array<vec4<f32>, KEYS * ROW>;
var<workgroup> score_partial: array<vec4<f32>, WG>;  // [S, QUERIES]: a lane's share of four scores
var<workgroup> dweight_partial: array<vec4<f32>, WG>;  // and of the gradients at their softmax weights

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let tiles = (p.T + QUERIES - 1u) / QUERIES;
    let index = group_index(group, groups);
    let first = index % tiles * QUERIES;
    let head = index / tiles % p.H;
    let window = index / tiles / p.H * p.T;  // its first row
    if (window >= p.N) {
        return;
    }
    let kv_head = head / (p.H / p.KV);
    let part = lane % S;
    let query = lane / S;
    let t = min(first + query, p.T - 1u);  // lanes behind the window repeat its last query and write nothing
    let row = (window + t) * p.H + head;

    var q_own: array<vec4<f32>, SLOTS>;
    var dout_own: array<vec4<f32>, SLOTS>;
    var sum: array<vec4<f32>, SLOTS>;
    for (var j = 0u; j < SLOTS; j++) {
        let slot = part + S * j;
        if (slot < ROW) {
            q_own[j] = q[row * ROW + slot] * p.scale;
            dout_own[j] = dout[row * ROW + slot];
        }
    }
    let z = lse[row];
    let shift = delta[row];
    for (var start = 0u; start < min(first + QUERIES, p.T); start += KEYS) {
        workgroupBarrier();  // the tiles have been read
        for (var i = lane; i < KEYS * ROW; i += WG) {
            let key = min(start + i / ROW, p.T - 1u);  // a key behind the window is masked below
            let at = ((window + key) * p.KV + kv_head) * ROW + i % ROW;
            k_tile[i] = k[at];
            v_tile[i] = v[at];
        }
        workgroupBarrier();  // the tiles are filled
        var score_share = vec4<f32>();
        var dweight_share = vec4<f32>();
        for (var j = 0u; j < SLOTS; j++) {
            let slot = part + S * j;
            if (slot < ROW) {
                score_share += vec4<f32>(
                    dot(q_own[j], k_tile[slot]),
                    dot(q_own[j], k_tile[slot + ROW]),
                    dot(q_own[j], k_tile[slot + 2u * ROW]),
                    dot(q_own[j], k_tile[slot + 3u * ROW]),
                );
                dweight_share += vec4<f32>(
                    dot(dout_own[j], v_tile[slot]),
                    dot(dout_own[j], v_tile[slot + ROW]),
                    dot(dout_own[j], v_tile[slot + 2u * ROW]),
                    dot(dout_own[j], v_tile[slot + 3u * ROW]),
                );
            }
        }
        score_partial[part * QUERIES + query] = score_share;
        dweight_partial[part * QUERIES + query] = dweight_share;
        workgroupBarrier();  // the shares of a query's lanes are there
        var score = vec4<f32>();
        var dweight = vec4<f32>();
        for (var i = 0u; i < S; i++) {
            score += score_partial[i * QUERIES + query];
            dweight += dweight_partial[i * QUERIES + query];
        }
        let seen = start + vec4<u32>(0u, 1u, 2u, 3u) <= vec4<u32>(t);
        let dscore = exp(select(vec4<f32>(LOW), score, seen) - z) * (dweight - shift);
        for (var j = 0u; j < SLOTS; j++) {
            let slot = part + S * j;
            if (slot < ROW) {
                sum[j] += dscore.x * k_tile[slot] + dscore.y * k_tile[slot + ROW]
                    + dscore.z * k_tile[slot + 2u * ROW] + dscore.w * k_tile[slot + 3u * ROW];
            }
        }
    }
    if (first + query >= p.T) {
        return;
    }
    for (var j = 0u; j < SLOTS; j++) {
        let slot = part + S * j;
        if (slot < ROW) {
            dq[row * ROW + slot] = sum[j] * p.scale;
        }
    }
}
