// gdn_pairs: inside each chunk the products k·k (s < t) and q·k (s <= t), times the decay from s to t; and each token's rates
// bind 0  in   q          f32[N, Hk, Dk]
// bind 1  in   k          f32[N, Hk, Dk]
// bind 2  in   log_decay  f32[N, Hv]        <= 0
// bind 3  in   beta       f32[N, Hv]
// bind 4  out  pairs      f32[N, Hv, 2, L]  row t: k_t·k_s, then q_t·k_s, for the chunk's tokens s; 0 elsewhere
// bind 5  out  rates      f32[N, Hv, 4]     beta, decay from the chunk's start, decay to its end, log_decay
// const   DK  head dim; L tokens per chunk, one invocation each
// grid    B * Hv * NC
// numerics  decays are exp of sums over the tokens between, never quotients: they neither overflow nor cancel
// see     gdn_pairs_bwd.wgsl

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> log_decay: array<f32>;
@group(0) @binding(3) var<storage, read> beta: array<f32>;
@group(0) @binding(4) var<storage, read_write> pairs: array<f32>;
@group(0) @binding(5) var<storage, read_write> rates: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> p: Params;

//!include lib/group_index.wgsl

@compute @workgroup_size(L)
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
    let kh = h / (p.Hv / p.Hk);
    let n0 = b * p.T + c * L;
    let last = min(L, p.T - c * L) - 1u;
    let own = min(lane, last);
    let own_row = ((n0 + own) * p.Hk + kh) * (DK / 4u);
    var ks: array<vec4<f32>, DK / 4u>;
    for (var i = 0u; i < DK / 4u; i++) {
        ks[i] = k[own_row + i];
    }
    var before = 0.0;  // log decay from the chunk's start to this token
    var behind = 0.0;  // from this token to token t, in the end to the chunk's end
    for (var t = 0u; t <= last; t += 4u) {
        var kk = vec4<f32>(0.0);
        var qk = vec4<f32>(0.0);
        if (t + 3u >= lane) {
            let n = n0 + min(vec4<u32>(t, t + 1u, t + 2u, t + 3u), vec4<u32>(last));
            let row = (n * p.Hk + kh) * (DK / 4u);
            for (var i = 0u; i < DK / 4u; i++) {
                let s = ks[i];
                kk += vec4<f32>(dot(k[row.x + i], s), dot(k[row.y + i], s), dot(k[row.z + i], s), dot(k[row.w + i], s));
                qk += vec4<f32>(dot(q[row.x + i], s), dot(q[row.y + i], s), dot(q[row.z + i], s), dot(q[row.w + i], s));
            }
        }
        for (var j = 0u; j < 4u && t + j <= last; j++) {
            let r = t + j;
            let head = (n0 + r) * p.Hv + h;
            let g = log_decay[head];
            before += select(0.0, g, r <= lane);
            behind += select(0.0, g, r > lane);
            let decay = exp(behind);
            pairs[head * (2u * L) + lane] = select(0.0, kk[j] * decay, r > lane);
            pairs[head * (2u * L) + L + lane] = select(0.0, qk[j] * decay, r >= lane);
        }
    }
    if (lane <= last) {
        let head = (n0 + lane) * p.Hv + h;
        rates[head] = vec4<f32>(beta[head], exp(before), exp(behind), log_decay[head]);
    }
}
