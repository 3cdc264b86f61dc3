// gdn_states: the state at the start of every chunk, and every token's gap v - (decayed state)ᵀk; a column per invocation
// bind 0  in     k       f32[N, Hk, Dk]
// bind 1  in     v       f32[N, Hv, Dv]
// bind 2  in     rates   f32[N, Hv, 4]
// bind 3  in     pairs   f32[N, Hv, 2, L]
// bind 4  inout  gap     f32[N, Hv, Dv]      rows of this group's scans
// bind 5  out    states  f32[G, NC, Dk, Dv]  of scans scan0 to scan0 + G - 1, in the order window, value head
// const   DK, DV  head dims; W columns per invocation; L tokens per chunk; WG invocations
// alias   COL  f32 or a vector of W columns
// grid    G * cdiv(DV / W, WG)
// numerics  f32; the state is only ever multiplied by decays <= 1
// see     gdn_states_bwd.wgsl

@group(0) @binding(0) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> v: array<COL>;
@group(0) @binding(2) var<storage, read> rates: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> pairs: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> gap: array<COL>;
@group(0) @binding(5) var<storage, read_write> states: array<COL>;
@group(0) @binding(6) var<uniform> p: Params;

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
    var state: array<COL, DK>;
    for (var c = 0u; c < p.NC; c++) {
        let n0 = b * p.T + c * L;
        let last = min(L, p.T - c * L) - 1u;  // the chunk's last row
        let at = (slot * p.NC + c) * DK * COLS + col;
        for (var i = 0u; i < DK; i++) {
            states[at + i * COLS] = state[i];
        }
        // delta_t = beta_t gap_t, four tokens at a time; rows behind the last repeat it and get delta 0
        var delta: array<COL, L>;
        for (var t = 0u; t <= last; t += 4u) {
            let n = n0 + min(vec4<u32>(t, t + 1u, t + 2u, t + 3u), vec4<u32>(last));
            let row = (n * p.Hk + kh) * (DK / 4u);
            var x0 = COL(0.0);
            var x1 = COL(0.0);
            var x2 = COL(0.0);
            var x3 = COL(0.0);
            for (var i = 0u; i < DK / 4u; i++) {
                let s0 = state[4u * i];
                let s1 = state[4u * i + 1u];
                let s2 = state[4u * i + 2u];
                let s3 = state[4u * i + 3u];
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
            let vrow = head * COLS + col;
            x0 = v[vrow.x] - r0.y * x0;
            x1 = v[vrow.y] - r1.y * x1;
            x2 = v[vrow.z] - r2.y * x2;
            x3 = v[vrow.w] - r3.y * x3;
            let pair = head * (2u * L / 4u);
            for (var s = 0u; s < t / 4u; s++) {
                let d0 = delta[4u * s];
                let d1 = delta[4u * s + 1u];
                let d2 = delta[4u * s + 2u];
                let d3 = delta[4u * s + 3u];
                let m0 = pairs[pair.x + s];
                let m1 = pairs[pair.y + s];
                let m2 = pairs[pair.z + s];
                let m3 = pairs[pair.w + s];
                x0 -= m0.x * d0 + m0.y * d1 + m0.z * d2 + m0.w * d3;
                x1 -= m1.x * d0 + m1.y * d1 + m1.z * d2 + m1.w * d3;
                x2 -= m2.x * d0 + m2.y * d1 + m2.z * d2 + m2.w * d3;
                x3 -= m3.x * d0 + m3.y * d1 + m3.z * d2 + m3.w * d3;
            }
            let m1 = pairs[pair.y + t / 4u];
            let m2 = pairs[pair.z + t / 4u];
            let m3 = pairs[pair.w + t / 4u];
            let d0 = r0.x * x0;
            x1 -= m1.x * d0;
            let d1 = r1.x * x1;
            x2 -= m2.x * d0 + m2.y * d1;
            let d2 = r2.x * x2;
            x3 -= m3.x * d0 + m3.y * d1 + m3.z * d2;
            let d3 = r3.x * x3;
            gap[vrow.x] = x0;
            delta[t] = d0;
            if (t + 1u <= last) {
                gap[vrow.y] = x1;
                delta[t + 1u] = d1;
            }
            if (t + 2u <= last) {
                gap[vrow.z] = x2;
                delta[t + 2u] = d2;
            }
            if (t + 3u <= last) {
                gap[vrow.w] = x3;
                delta[t + 3u] = d3;
            }
        }
        if (c + 1u == p.NC) {
            break;
        }
        // state at the chunk's end; only full chunks come here
        let whole = rates[(n0 + last) * p.Hv + h].y;
        for (var t = 0u; t < L; t++) {
            delta[t] *= rates[(n0 + t) * p.Hv + h].z;
        }
        for (var i = 0u; i < DK / 4u; i++) {
            var s0 = whole * state[4u * i];
            var s1 = whole * state[4u * i + 1u];
            var s2 = whole * state[4u * i + 2u];
            var s3 = whole * state[4u * i + 3u];
            for (var t = 0u; t < L; t++) {
                let kt = k[((n0 + t) * p.Hk + kh) * (DK / 4u) + i];
                let d = delta[t];
                s0 += kt.x * d;
                s1 += kt.y * d;
                s2 += kt.z * d;
                s3 += kt.w * d;
            }
            state[4u * i] = s0;
            state[4u * i + 1u] = s1;
            state[4u * i + 2u] = s2;
            state[4u * i + 3u] = s3;
        }
    }
}
