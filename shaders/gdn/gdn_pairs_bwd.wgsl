// gdn_pairs_bwd: gradients at the products of gdn_pairs (with their decay), at beta, and at log_decay by way of the products
// bind 0  in   dout        f32[N, Hv, Dv]
// bind 1  in   gap         f32[N, Hv, Dv]
// bind 2  in   ddelta      f32[N, Hv, Dv]
// bind 3  in   rates       f32[N, Hv, 4]
// bind 4  in   pairs       f32[N, Hv, 2, L]
// bind 5  out  dpairs      f32[N, Hv, 2, L]  at k_t·k_s and q_t·k_s
// bind 6  out  dlog_decay  f32[N, Hv]        without what passes through chunk-start states: gdn_dqk adds that
// bind 7  out  dbeta       f32[N, Hv]
// const   DV  head dim; L tokens per chunk, one invocation each
// grid    B * Hv * NC
// numerics  f32; log_decay_r collects the pairs s < r <= t one by one, no running differences
// see     gdn_pairs.wgsl

@group(0) @binding(0) var<storage, read> dout: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gap: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> ddelta: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> rates: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> pairs: array<f32>;
@group(0) @binding(5) var<storage, read_write> dpairs: array<f32>;
@group(0) @binding(6) var<storage, read_write> dlog_decay: array<f32>;
@group(0) @binding(7) var<storage, read_write> dbeta: array<f32>;
@group(0) @binding(8) var<uniform> p: Params;

//!include lib/group_index.wgsl

var<workgroup> through: array<f32, L * L>;  // row t, column s: product times its gradient

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
    let n0 = b * p.T + c * L;
    let last = min(L, p.T - c * L) - 1u;
    let own = (n0 + min(lane, last)) * p.Hv + h;
    let own_beta = rates[own].x;
    var gs: array<vec4<f32>, DV / 4u>;
    for (var i = 0u; i < DV / 4u; i++) {
        gs[i] = gap[own * (DV / 4u) + i];
    }
    var between = 0.0;  // log decay from this token to token t
    for (var t = 0u; t <= last; t += 4u) {
        var og = vec4<f32>(0.0);
        var dg = vec4<f32>(0.0);
        if (t + 3u >= lane) {
            let n = n0 + min(vec4<u32>(t, t + 1u, t + 2u, t + 3u), vec4<u32>(last));
            let row = (n * p.Hv + h) * (DV / 4u);
            for (var i = 0u; i < DV / 4u; i++) {
                let s = gs[i];
                og += vec4<f32>(dot(dout[row.x + i], s), dot(dout[row.y + i], s), dot(dout[row.z + i], s), dot(dout[row.w + i], s));
                dg += vec4<f32>(
                    dot(ddelta[row.x + i], s), dot(ddelta[row.y + i], s), dot(ddelta[row.z + i], s), dot(ddelta[row.w + i], s),
                );
            }
        }
        for (var j = 0u; j < 4u && t + j <= last; j++) {
            let r = t + j;
            let head = (n0 + r) * p.Hv + h;
            let rate = rates[head];
            between += select(0.0, rate.w, r > lane);
            if (r == lane) {
                dbeta[head] = dg[j];
            }
            let at = head * (2u * L) + lane;
            let dkk = select(0.0, -rate.x * own_beta * dg[j], r > lane);
            let dqk = select(0.0, own_beta * og[j], r >= lane);
            through[r * L + lane] = dkk * pairs[at] + dqk * pairs[at + L];
            let decay = exp(between);
            dpairs[at] = dkk * decay;
            dpairs[at + L] = dqk * decay;
        }
    }
    workgroupBarrier();
    if (lane <= last) {
        var sum = 0.0;
        for (var t = lane; t <= last; t++) {
            for (var s = 0u; s < lane; s++) {
                sum += through[t * L + s];
            }
        }
        dlog_decay[own] = sum;
    }
}
