// attention_bwd_dkv: gradients at k and v of causal attention; one workgroup per window, kv head and key tile
// bind 0  in   q      f32[N, H, D]
// bind 1  in   k      f32[N, KV, D]
// bind 2  in   v      f32[N, KV, D]
// bind 3  in   dout   f32[N, H, D]
// bind 4  in   lse    f32[N, H]
// bind 5  in   delta  f32[N, H]
// bind 6  out  dk     f32[N, KV, D]
// bind 7  out  dv     f32[N, KV, D]
// const   D, WG invocations, S lanes a key (each holds every S-th vec4 of the head)
// grid    N // T * KV * cdiv(T, WG // S)
// numerics  f32; query heads in order, then queries in order, four at a time
// see     attention_fwd.wgsl, attention_bwd_dq.wgsl

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

const ROW: u32 = D / 4u;  // vec4 of a head
const SLOTS: u32 = (ROW + S - 1u) / S;  // of them in one lane
const KEYS: u32 = WG / S;
const QUERIES: u32 = 4u;
const LOW: f32 = -1e30;  // score of a masked query

var<workgroup> q_tile: array<vec4<f32>, QUERIES * ROW>;
var<workgroup> dout_tile: array<vec4<f32>, QUERIES * ROW>;
var<workgroup> score_partial: array<vec4<f32>, WG>;  // [S, KEYS]: a lane's share of four scores
var<workgroup> dweight_partial: array<vec4<f32>, WG>;  // and of the gradients at their softmax weights

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let tiles = (p.T + KEYS - 1u) / KEYS;
    let index = group_index(group, groups);
    let first = index % tiles * KEYS;
    let kv_head = index / tiles % p.KV;
    let window = index / tiles / p.KV * p.T;  // its first row
    if (window >= p.N) {
        return;
    }
    let part = lane % S;
    let key = lane / S;
    let t = min(first + key, p.T - 1u);  // lanes behind the window repeat its last key and write nothing
    let own = ((window + t) * p.KV + kv_head) * ROW;

    var k_own: array<vec4<f32>, SLOTS>;
    var v_own: array<vec4<f32>, SLOTS>;
    var dk_sum: array<vec4<f32>, SLOTS>;
    var dv_sum: array<vec4<f32>, SLOTS>;
    for (var j = 0u; j < SLOTS; j++) {
        let slot = part + S * j;
        if (slot < ROW) {
            k_own[j] = k[own + slot] * p.scale;
            v_own[j] = v[own + slot];
        }
    }
    let rep = p.H / p.KV;
    for (var head = kv_head * rep; head < (kv_head + 1u) * rep; head++) {
        for (var start = first / QUERIES * QUERIES; start < p.T; start += QUERIES) {
            workgroupBarrier();  // the tiles have been read
            for (var i = lane; i < QUERIES * ROW; i += WG) {
                let query = min(start + i / ROW, p.T - 1u);  // a query behind the window is masked below
                let at = ((window + query) * p.H + head) * ROW + i % ROW;
                q_tile[i] = q[at];
                dout_tile[i] = dout[at];
            }
            workgroupBarrier();  // the tiles are filled
            var score_share = vec4<f32>();
            var dweight_share = vec4<f32>();
            for (var j = 0u; j < SLOTS; j++) {
                let slot = part + S * j;
                if (slot < ROW) {
                    score_share += vec4<f32>(
                        dot(k_own[j], q_tile[slot]),
                        dot(k_own[j], q_tile[slot + ROW]),
                        dot(k_own[j], q_tile[slot + 2u * ROW]),
                        dot(k_own[j], q_tile[slot + 3u * ROW]),
                    );
                    dweight_share += vec4<f32>(
                        dot(v_own[j], dout_tile[slot]),
                        dot(v_own[j], dout_tile[slot + ROW]),
                        dot(v_own[j], dout_tile[slot + 2u * ROW]),
                        dot(v_own[j], dout_tile[slot + 3u * ROW]),
                    );
                }
            }
            score_partial[part * KEYS + key] = score_share;
            dweight_partial[part * KEYS + key] = dweight_share;
            workgroupBarrier();  // the shares of a key's lanes are there
            var score = vec4<f32>();
            var dweight = vec4<f32>();
            for (var i = 0u; i < S; i++) {
                score += score_partial[i * KEYS + key];
                dweight += dweight_partial[i * KEYS + key];
            }
            let queries = start + vec4<u32>(0u, 1u, 2u, 3u);
            let seen = (queries >= vec4<u32>(t)) & (queries < vec4<u32>(p.T));
            let rows = (window + min(queries, vec4<u32>(p.T - 1u))) * p.H + head;
            let z = vec4<f32>(lse[rows.x], lse[rows.y], lse[rows.z], lse[rows.w]);
            let shift = vec4<f32>(delta[rows.x], delta[rows.y], delta[rows.z], delta[rows.w]);
            let weight = exp(select(vec4<f32>(LOW), score, seen) - z);
            let dscore = weight * (dweight - shift);
            for (var j = 0u; j < SLOTS; j++) {
                let slot = part + S * j;
                if (slot < ROW) {
                    dk_sum[j] += dscore.x * q_tile[slot] + dscore.y * q_tile[slot + ROW]
                        + dscore.z * q_tile[slot + 2u * ROW] + dscore.w * q_tile[slot + 3u * ROW];
                    dv_sum[j] += weight.x * dout_tile[slot] + weight.y * dout_tile[slot + ROW]
                        + weight.z * dout_tile[slot + 2u * ROW] + weight.w * dout_tile[slot + 3u * ROW];
                }
            }
        }
    }
    if (first + key >= p.T) {
        return;
    }
    for (var j = 0u; j < SLOTS; j++) {
        let slot = part + S * j;
        if (slot < ROW) {
            dk[own + slot] = dk_sum[j] * p.scale;
            dv[own + slot] = dv_sum[j];
        }
    }
}
