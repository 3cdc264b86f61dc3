// gdn_out: o_t = (decayed chunk-start state)ᵀ q_t + sum over s <= t of pairs q·k delta_s; a column of a chunk per invocation
// bind 0  in     q       f32[N, Hk, Dk]
// bind 1  in     rates   f32[N, Hv, 4]
// bind 2  in     pairs   f32[N, Hv, 2, L]
// bind 3  in     gap     f32[N, Hv, Dv]
// bind 4  in     states  f32[G, NC, Dk, Dv]
// bind 5  inout  o       f32[N, Hv, Dv]      rows of this group's scans
// const   DK, DV  head dims; W columns per invocation; L tokens per chunk; WG invocations
// alias   COL  f32 or a vector of W columns
// grid    G * NC * cdiv(DV / W, WG)
// numerics  f32
// see     gdn_states_bwd.wgsl, gdn_reads.wgsl, gdn_pairs_bwd.wgsl

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> rates: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> pairs: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> gap: array<COL>;
@group(0) @binding(4) var<storage, read> states: array<COL>;
@group(0) @binding(5) var<storage, read_write> o: array<COL>;
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
    let chunk = id / BLOCKS;
    let col = (id % BLOCKS) * WG + lane;
    if (chunk >= p.G * p.NC || col >= COLS) {
        return;
    }
    let scan = p.scan0 + chunk / p.NC;
    let c = chunk % p.NC;
    let h = scan % p.Hv;
    let kh = h / (p.Hv / p.Hk);
    let n0 = (scan / p.Hv) * p.T + c * L;
    let last = min(L, p.T - c * L) - 1u;
    var state: array<COL, DK>;
    for (var i = 0u; i < DK; i++) {
        state[i] = states[(chunk * DK + i) * COLS + col];
    }
    var delta: array<COL, L>;  // 0 behind the last row
    for (var t = 0u; t <= last; t++) {
        let head = (n0 + t) * p.Hv + h;
        delta[t] = rates[head].x * gap[head * COLS + col];
    }
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
            let q0 = q[row.x + i];
            let q1 = q[row.y + i];
            let q2 = q[row.z + i];
            let q3 = q[row.w + i];
            x0 += q0.x * s0 + q0.y * s1 + q0.z * s2 + q0.w * s3;
            x1 += q1.x * s0 + q1.y * s1 + q1.z * s2 + q1.w * s3;
            x2 += q2.x * s0 + q2.y * s1 + q2.z * s2 + q2.w * s3;
            x3 += q3.x * s0 + q3.y * s1 + q3.z * s2 + q3.w * s3;
        }
        let head = n * p.Hv + h;
        x0 *= rates[head.x].y;
        x1 *= rates[head.y].y;
        x2 *= rates[head.z].y;
        x3 *= rates[head.w].y;
        let pair = (head * 2u + 1u) * (L / 4u);
        for (var s = 0u; s <= t / 4u; s++) {
            let d0 = delta[4u * s];
            let d1 = delta[4u * s + 1u];
            let d2 = delta[4u * s + 2u];
            let d3 = delta[4u * s + 3u];
            let m0 = pairs[pair.x + s];
            let m1 = pairs[pair.y + s];
            let m2 = pairs[pair.z + s];
            let m3 = pairs[pair.w + s];
            x0 += m0.x * d0 + m0.y * d1 + m0.z * d2 + m0.w * d3;
            x1 += m1.x * d0 + m1.y * d1 + m1.z * d2 + m1.w * d3;
            x2 += m2.x * d0 + m2.y * d1 + m2.z * d2 + m2.w * d3;
            x3 += m3.x * d0 + m3.y * d1 + m3.z * d2 + m3.w * d3;
        }
        let at = head * COLS + col;
        o[at.x] = x0;
        if (t + 1u <= last) {
            o[at.y] = x1;
        }
        if (t + 2u <= last) {
            o[at.z] = x2;
        }
        if (t + 3u <= last) {
            o[at.w] = x3;
        }
    }
}
