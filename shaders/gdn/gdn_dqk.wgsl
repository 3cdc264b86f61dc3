// gdn_dqk: dq and dk of every value head, and the rest of dlog_decay; one workgroup per chunk
// bind 0  in     q           f32[N, Hk, Dk]
// bind 1  in     k           f32[N, Hk, Dk]
// bind 2  in     dpairs      f32[N, Hv, 2, L]
// bind 3  in     reads       f32[N, Hv, 3, Dk]
// bind 4  in     carry       f32[N, Hv]
// bind 5  out    dq          f32[N, Hv, Dk]
// bind 6  out    dk          f32[N, Hv, Dk]
// bind 7  inout  dlog_decay  f32[N, Hv]
// const   DK  head dim; W of its elements per invocation; L tokens per chunk; WG invocations, at least L
// alias   COL  f32 or a vector of W elements
// lib     lib/columns_1.wgsl or lib/columns_4.wgsl
// grid    B * Hv * NC
// numerics  f32, sums in a fixed order; log_decay_r collects only terms that its decay multiplies
// see     gdn_reads.wgsl, gdn_pairs_bwd.wgsl

@group(0) @binding(0) var<storage, read> q: array<COL>;
@group(0) @binding(1) var<storage, read> k: array<COL>;
@group(0) @binding(2) var<storage, read> dpairs: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> reads: array<COL>;
@group(0) @binding(4) var<storage, read> carry: array<f32>;
@group(0) @binding(5) var<storage, read_write> dq: array<COL>;
@group(0) @binding(6) var<storage, read_write> dk: array<COL>;
@group(0) @binding(7) var<storage, read_write> dlog_decay: array<f32>;
@group(0) @binding(8) var<uniform> p: Params;

//!include lib/group_index.wgsl

const COLS = DK / W;

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
    var ks: array<COL, L>;
    var dks: array<COL, L>;
    for (var i = lane; i < COLS; i += WG) {
        dks = array<COL, L>();
        for (var t = 0u; t <= last; t++) {
            ks[t] = k[((n0 + t) * p.Hk + kh) * COLS + i];
        }
        for (var t = 0u; t <= last; t++) {
            let head = (n0 + t) * p.Hv + h;
            let qt = q[((n0 + t) * p.Hk + kh) * COLS + i];
            let kt = ks[t];
            let read = head * (3u * COLS) + i;
            var sum_q = reads[read];
            var sum_k = reads[read + COLS] + reads[read + 2u * COLS];
            // the products of t with the tokens s <= t; those of the last four that lie behind t are 0
            for (var s = 0u; s <= t / 4u; s++) {
                let kk = dpairs[head * (2u * L / 4u) + s];
                let qk = dpairs[head * (2u * L / 4u) + L / 4u + s];
                let k0 = ks[4u * s];
                let k1 = ks[4u * s + 1u];
                let k2 = ks[4u * s + 2u];
                let k3 = ks[4u * s + 3u];
                sum_q += qk.x * k0 + qk.y * k1 + qk.z * k2 + qk.w * k3;
                sum_k += kk.x * k0 + kk.y * k1 + kk.z * k2 + kk.w * k3;
                dks[4u * s] += qk.x * qt + kk.x * kt;
                dks[4u * s + 1u] += qk.y * qt + kk.y * kt;
                dks[4u * s + 2u] += qk.z * qt + kk.z * kt;
                dks[4u * s + 3u] += qk.w * qt + kk.w * kt;
            }
            dq[head * COLS + i] = sum_q;
            dks[t] += sum_k;
        }
        for (var t = 0u; t <= last; t++) {
            dk[((n0 + t) * p.Hv + h) * COLS + i] = dks[t];
        }
    }
    if (lane <= last) {
        let read = ((n0 + lane) * p.Hv + h) * (3u * COLS);
        let row = ((n0 + lane) * p.Hk + kh) * COLS;
        var sum_in = COL(0.0);
        var sum_out = COL(0.0);
        for (var i = 0u; i < COLS; i++) {
            sum_in += q[row + i] * reads[read + i] + k[row + i] * reads[read + COLS + i];
            sum_out += k[row + i] * reads[read + 2u * COLS + i];
        }
        onward[lane] = total(sum_in);
        away[lane] = total(sum_out);
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
