// gdn_states_bwd: backward through gdn_states and gdn_out, last chunk first; a column per invocation
// bind 0  in     q        f32[N, Hk, Dk]
// bind 1  in     k        f32[N, Hk, Dk]
// bind 2  in     rates    f32[N, Hv, 4]
// bind 3  in     pairs    f32[N, Hv, 2, L]
// bind 4  in     dout      f32[N, Hv, Dv]
// bind 5  inout  ddelta   f32[N, Hv, Dv]      rows of this group's scans
// bind 6  inout  dv       f32[N, Hv, Dv]      beta * ddelta, likewise
// bind 7  out    dstates  f32[G, NC, Dk, Dv]  gradient at the state behind every chunk
// const   DK, DV  head dims; W columns per invocation; L tokens per chunk; WG invocations
// alias   COL  f32 or a vector of W columns
// grid    G * cdiv(DV / W, WG)
// numerics  f32
// see     gdn_states.wgsl, gdn_out.wgsl

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> rates: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> pairs: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> dout: array<COL>;
@group(0) @binding(5) var<storage, read_write> ddelta: array<COL>;
@group(0) @binding(6) var<storage, read_write> dv: array<COL>;
@group(0) @binding(7) var<storage, read_write> dstates: array<COL>;
@group(0) @binding(8) var<uniform> p: Params;

//!include lib/group_index.wgsl

const COLS = DV / W;
const BLOCKS = (COLS + WG - 1u) / WG;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let id = group_index(group, groups);
    let slot = id / BLOCKS;
    let col = (id % BLOCKS) * WG + lane;
    if (slot >= p.G || col >= COLS) {
        return;
    }
    let b = (p.scan0 + slot) / p.Hv;
    let h = (p.scan0 + slot) % p.Hv;
    let kh = h / (p.Hv / p.Hk);
    var dstate: array<COL, DK>;
    for (var left = p.NC; left > 0u; left--) {
        let c = left - 1u;
        let n0 = b * p.T + c * L;
        let last = min(L, p.T - c * L) - 1u;  // the chunk's last row
        let at = (slot * p.NC + c) * DK * COLS + col;
        for (var i = 0u; i < DK; i++) {
            dstates[at + i * COLS] = dstate[i];
        }
        var gout: array<COL, L>;
        for (var t = 0u; t <= last; t++) {
            gout[t] = dout[((n0 + t) * p.Hv + h) * COLS + col];
        }
        // ddelta_t and dgap_t = beta_t ddelta_t, four tokens at a time, last ones first; rows behind the last repeat it
        var dgap: array<COL, L>;
        for (var block = last / 4u + 1u; block > 0u; block--) {
            let t = 4u * (block - 1u);
            let n = n0 + min(vec4<u32>(t, t + 1u, t + 2u, t + 3u), vec4<u32>(last));
            let row = (n * p.Hk + kh) * (DK / 4u);
            var x0 = COL(0.0);
            var x1 = COL(0.0);
            var x2 = COL(0.0);
            var x3 = COL(0.0);
            for (var i = 0u; i < DK / 4u; i++) {
                let s0 = dstate[4u * i];
                let s1 = dstate[4u * i + 1u];
                let s2 = dstate[4u * i + 2u];
                let s3 = dstate[4u * i + 3u];
                let k0 = k[row.x + i];
                let k1 = k[row.y + i];
                let k2 = k[row.z + i];
                let k3 = k[row.w + i];
                x0 += k0.x * s0 + k0.y * s1 + k0.z * s2 + k0.w * s3;
                x1 += k1.x * s0 + k1.y * s1 + k1.z * s2 + k1.w * s3;
                x2 += k2.x * s0 + k2.y * s1 + k2.z * s2 + k2.w * s3;
                x3 += k3.x * s0 + k3.y * s1 + k3.z * s2 + k3.w * s3;
            }
            let head = n * p.Hv + h;
            let r0 = rates[head.x];
            let r1 = rates[head.y];
            let r2 = rates[head.z];
            let r3 = rates[head.w];
            x0 *= r0.z;
            x1 *= r1.z;
            x2 *= r2.z;
            x3 *= r3.z;
            // tokens r of this block and later ones read delta_t: through q·k (their output), and through k·k (their gap)
            for (var r = t; r <= last; r++) {
                let pair = ((n0 + r) * p.Hv + h) * (2u * L / 4u) + t / 4u;
                let kk = pairs[pair] * select(0.0, 1.0, r >= t + 4u);  // of this block: below
                let qk = pairs[pair + L / 4u];
                let g = gout[r];
                let u = dgap[r];
                x0 += qk.x * g - kk.x * u;
                x1 += qk.y * g - kk.y * u;
                x2 += qk.z * g - kk.z * u;
                x3 += qk.w * g - kk.w * u;
            }
            let pair = head * (2u * L / 4u) + t / 4u;
            let m1 = pairs[pair.y];
            let m2 = pairs[pair.z];
            let m3 = pairs[pair.w];
            let u3 = r3.x * x3 * select(0.0, 1.0, t + 3u <= last);
            x2 -= m3.z * u3;
            let u2 = r2.x * x2 * select(0.0, 1.0, t + 2u <= last);
            x1 -= m3.y * u3 + m2.y * u2;
            let u1 = r1.x * x1 * select(0.0, 1.0, t + 1u <= last);
            x0 -= m3.x * u3 + m2.x * u2 + m1.x * u1;
            let u0 = r0.x * x0;
            dgap[t] = u0;
            dgap[t + 1u] = u1;
            dgap[t + 2u] = u2;
            dgap[t + 3u] = u3;
            let out = head * COLS + col;
            ddelta[out.x] = x0;
            dv[out.x] = u0;
            if (t + 1u <= last) {
                ddelta[out.y] = x1;
                dv[out.y] = u1;
            }
            if (t + 2u <= last) {
                ddelta[out.z] = x2;
                dv[out.z] = u2;
            }
            if (t + 3u <= last) {
                ddelta[out.w] = x3;
                dv[out.w] = u3;
            }
        }
        if (c == 0u) {
            break;
        }
        // gradient at the chunk's start
        let whole = rates[(n0 + last) * p.Hv + h].y;
        for (var t = 0u; t <= last; t++) {
            let into = rates[(n0 + t) * p.Hv + h].y;
            gout[t] *= into;
            dgap[t] *= into;
        }
        for (var i = 0u; i < DK / 4u; i++) {
            var s0 = whole * dstate[4u * i];
            var s1 = whole * dstate[4u * i + 1u];
            var s2 = whole * dstate[4u * i + 2u];
            var s3 = whole * dstate[4u * i + 3u];
            for (var t = 0u; t <= last; t++) {
                let row = ((n0 + t) * p.Hk + kh) * (DK / 4u) + i;
                let qt = q[row];
                let kt = k[row];
                let g = gout[t];
                let u = dgap[t];
                s0 += qt.x * g - kt.x * u;
                s1 += qt.y * g - kt.y * u;
                s2 += qt.z * g - kt.z * u;
                s3 += qt.w * g - kt.w * u;
            }
            dstate[4u * i] = s0;
            dstate[4u * i + 1u] = s1;
            dstate[4u * i + 2u] = s2;
            dstate[4u * i + 3u] = s3;
        }
    }
}
