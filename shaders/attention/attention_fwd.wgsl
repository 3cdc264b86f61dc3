// attention_fwd: causal grouped-query attention with an online softmax; one workgroup per window, head and query tile
// bind 0  in   q    f32[N, H, D]
// bind 1  in   k    f32[N, KV, D]
// bind 2  in   v    f32[N, KV, D]
// bind 3  out  o    f32[N, H, D]
// bind 4  out  lse  f32[N, H]      log-sum-exp of the scaled scores, kept for the backward
// const   D, WG invocations, S lanes a query (each holds every S-th vec4 of the head)
// grid    N // T * H * cdiv(T, WG // S)
// numerics  f32; keys in order, four at a time
// see     attention_bwd_dq.wgsl, attention_bwd_dkv.wgsl

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> o: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

//!include lib/group_index.wgsl

const ROW: u32 = D / 4u;  // vec4 of a head
const SLOTS: u32 = (ROW + S - 1u) / S;  // of them in one lane
const QUERIES: u32 = WG / S;
const KEYS: u32 = 4u;
const LOW: f32 = -1e30;  // score of a masked key

var<workgroup> k_tile: array<vec4<f32>, KEYS * ROW>;
var<workgroup> v_tile: array<vec4<f32>, KEYS * ROW>;
var<workgroup> partial: array<vec4<f32>, WG>;  // [S, QUERIES]: a lane's share of four scores

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
    let own = ((window + t) * p.H + head) * ROW;

    var q_own: array<vec4<f32>, SLOTS>;
    var sum: array<vec4<f32>, SLOTS>;
    for (var j = 0u; j < SLOTS; j++) {
        let slot = part + S * j;
        if (slot < ROW) {
            q_own[j] = q[own + slot] * p.scale;
        }
    }
    var top = LOW;
    var mass = 0.0;
    for (var start = 0u; start < min(first + QUERIES, p.T); start += KEYS) {
        workgroupBarrier();  // the tiles have been read
        for (var i = lane; i < KEYS * ROW; i += WG) {
            let key = min(start + i / ROW, p.T - 1u);  // a key behind the window is masked below
            let at = ((window + key) * p.KV + kv_head) * ROW + i % ROW;
            k_tile[i] = k[at];
            v_tile[i] = v[at];
        }
        workgroupBarrier();  // the tiles are filled
        var share = vec4<f32>();
        for (var j = 0u; j < SLOTS; j++) {
            let slot = part + S * j;
            if (slot < ROW) {
                share += vec4<f32>(
                    dot(q_own[j], k_tile[slot]),
                    dot(q_own[j], k_tile[slot + ROW]),
                    dot(q_own[j], k_tile[slot + 2u * ROW]),
                    dot(q_own[j], k_tile[slot + 3u * ROW]),
                );
            }
        }
        partial[part * QUERIES + query] = share;
        workgroupBarrier();  // the shares of a query's lanes are there
        var score = vec4<f32>();
        for (var i = 0u; i < S; i++) {
            score += partial[i * QUERIES + query];
        }
        let seen = start + vec4<u32>(0u, 1u, 2u, 3u) <= vec4<u32>(t);
        score = select(vec4<f32>(LOW), score, seen);
        let new_top = max(top, max(max(score.x, score.y), max(score.z, score.w)));
        let weight = exp(score - new_top);
        let fade = exp(top - new_top);
        mass = mass * fade + dot(weight, vec4<f32>(1.0));
        top = new_top;
        for (var j = 0u; j < SLOTS; j++) {
            let slot = part + S * j;
            if (slot < ROW) {
                sum[j] = sum[j] * fade + weight.x * v_tile[slot] + weight.y * v_tile[slot + ROW]
                    + weight.z * v_tile[slot + 2u * ROW] + weight.w * v_tile[slot + 3u * ROW];
            }
        }
    }
    if (first + query >= p.T) {
        return;
    }
    for (var j = 0u; j < SLOTS; j++) {
        let slot = part + S * j;
        if (slot < ROW) {
            o[own + slot] = sum[j] / mass;
        }
    }
    if (part == 0u) {
        lse[(window + t) * p.H + head] = top + log(mass);
    }
}
