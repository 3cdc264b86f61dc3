// gdn_dqk: dq and dk of every value head, and the rest of dlog_decay; one workgroup per chunk
// bind 0  in     q           f32[N, Hk, Dk]
// bind 1  in     k           f32[N, Hk, Dk]
// bind 2  in     dpairs      f32[N, Hv, 2, L]
// bind 3  in     reads       f32[N, Hv, 3, Dk]
// bind 4  in     carry       f32[N, Hv]
// bind 5  out    dq          f32[N, Hv, Dk]
// bind 6  out    dk          f32[N, Hv, Dk]
// bind 7  inout  dlog_decay  f32[N, Hv]
// const   DK  head dim; L tokens per chunk; WG invocations, at least L
// grid    B * Hv * NC
// numerics  f32, sums in a fixed order; log_decay_r collects only terms that its decay multiplies
// see     gdn_reads.wgsl, gdn_pairs_bwd.wgsl

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> dpairs: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> reads: array<f32>;
@group(0) @binding(4) var<storage, read> carry: array<f32>;
@group(0) @binding(5) var<storage, read_write> dq: array<f32>;
@group(0) @binding(6) var<storage, read_write> dk: array<f32>;
@group(0) @binding(7) var<storage, read_write> dlog_decay: array<f32>;
@group(0) @binding(8) var<uniform> p: Params;

//!include lib/group_index.wgsl

var<workgroup> onward: array<f32, L>;  // what all decays from the chunk's start up to token t multiply
var<workgroup> away: array<f32, L>;    // what all decays behind token t multiply

@compute @workgroup_size(WG)
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
    for (var i = lane; i < DK; i += WG) {
        var ks: array<f32, L>;   // 0 behind the last row
        var dks: array<f32, L>;
        for (var t = 0u; t <= last; t++) {
            ks[t] = k[((n0 + t) * p.Hk + kh) * DK + i];
        }
        for (var t = 0u; t <= last; t++) {
            let head = (n0 + t) * p.Hv + h;
            let qt = q[((n0 + t) * p.Hk + kh) * DK + i];
            let kt = ks[t];
            let at = head * (2u * L / 4u);
            var sum_q = reads[head * (3u * DK) + i];
            var sum_k = reads[head * (3u * DK) + DK + i] + reads[head * (3u * DK) + 2u * DK + i];
            for (var s = 0u; s <= t / 4u; s++) {
                let dkk = dpairs[at + s];
                let dqk = dpairs[at + L / 4u + s];
                let k4 = vec4<f32>(ks[4u * s], ks[4u * s + 1u], ks[4u * s + 2u], ks[4u * s + 3u]);
                sum_q += dot(dqk, k4);
                sum_k += dot(dkk, k4);
                let d4 = dqk * qt + dkk * kt;
                dks[4u * s] += d4.x;
                dks[4u * s + 1u] += d4.y;
                dks[4u * s + 2u] += d4.z;
                dks[4u * s + 3u] += d4.w;
            }
            dq[head * DK + i] = sum_q;
            dks[t] += sum_k;
        }
        for (var t = 0u; t <= last; t++) {
            dk[((n0 + t) * p.Hv + h) * DK + i] = dks[t];
        }
    }
    if (lane <= last) {
        let at = ((n0 + lane) * p.Hv + h) * (3u * DK);
        let row = ((n0 + lane) * p.Hk + kh) * DK;
        var sum_in = 0.0;
        var sum_out = 0.0;
        for (var i = 0u; i < DK; i++) {
            sum_in += q[row + i] * reads[at + i] + k[row + i] * reads[at + DK + i];
            sum_out += k[row + i] * reads[at + 2u * DK + i];
        }
        onward[lane] = sum_in;
        away[lane] = sum_out;
    }
    workgroupBarrier();
    if (lane <= last) {
        let head = (n0 + lane) * p.Hv + h;
        var sum = dlog_decay[head] + carry[head];
        for (var t = 0u; t <= last; t++) {
            sum += select(away[t], onward[t], t >= lane);
        }
        dlog_decay[head] = sum;
    }
}
