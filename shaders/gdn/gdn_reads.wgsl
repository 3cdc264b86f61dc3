// gdn_reads: kind 0: decayed state · x (to dq, x = dout), 1: -decayed state · x (to dk, x = dv),
//            2: dstate · what token t adds to the chunk's last state (to dk, x = gap); rows of a chunk's state per invocation
// bind 0  in     x       f32[N, Hv, Dv]
// bind 1  in     rates   f32[N, Hv, 4]
// bind 2  in     states  f32[G, NC, Dk, Dv]  dstates for kind 2
// bind 3  inout  reads   f32[N, Hv, 3, Dk]   this kind and this group's scans
// const   DK, DV  head dims; W rows per invocation; L tokens per chunk; WG invocations
// alias   COL  f32 or a vector of W rows
// lib     lib/columns_1.wgsl or lib/columns_4.wgsl
// grid    G * NC * cdiv(DK / W, WG)
// numerics  f32, sums in a fixed order
// see     gdn_dqk.wgsl

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> rates: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> states: array<f32>;
@group(0) @binding(3) var<storage, read_write> reads: array<COL>;
@group(0) @binding(4) var<uniform> p: Params;

//!include lib/group_index.wgsl

const ROWS = DK / W;
const BLOCKS = (ROWS + WG - 1u) / WG;

fn factor(rate: vec4<f32>) -> f32 {
    if (p.kind == 2u) {
        return rate.x * rate.z;
    }
    return select(rate.y, -rate.y, p.kind == 1u);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let id = group_index(group, groups);
    let chunk = id / BLOCKS;
    let i = (id % BLOCKS) * WG + lane;
    if (chunk >= p.G * p.NC || i >= ROWS) {
        return;
    }
    let scan = p.scan0 + chunk / p.NC;
    let c = chunk % p.NC;
    let h = scan % p.Hv;
    let n0 = (scan / p.Hv) * p.T + c * L;
    let last = min(L, p.T - c * L) - 1u;
    var row: array<COL, DV>;
    let base = (chunk * DK + i * W) * DV;
    for (var j = 0u; j < DV; j++) {
        let at = base + j;
        row[j] = column(
            states[at], states[at + min(1u, W - 1u) * DV], states[at + min(2u, W - 1u) * DV], states[at + (W - 1u) * DV],
        );
    }
    for (var t = 0u; t <= last; t += 4u) {
        let n = n0 + min(vec4<u32>(t, t + 1u, t + 2u, t + 3u), vec4<u32>(last));
        let head = n * p.Hv + h;
        let at = head * (DV / 4u);
        var y0 = COL(0.0);
        var y1 = COL(0.0);
        var y2 = COL(0.0);
        var y3 = COL(0.0);
        for (var j = 0u; j < DV / 4u; j++) {
            let s0 = row[4u * j];
            let s1 = row[4u * j + 1u];
            let s2 = row[4u * j + 2u];
            let s3 = row[4u * j + 3u];
            let x0 = x[at.x + j];
            let x1 = x[at.y + j];
            let x2 = x[at.z + j];
            let x3 = x[at.w + j];
            y0 += x0.x * s0 + x0.y * s1 + x0.z * s2 + x0.w * s3;
            y1 += x1.x * s0 + x1.y * s1 + x1.z * s2 + x1.w * s3;
            y2 += x2.x * s0 + x2.y * s1 + x2.z * s2 + x2.w * s3;
            y3 += x3.x * s0 + x3.y * s1 + x3.z * s2 + x3.w * s3;
        }
        let to = (head * 3u + p.kind) * ROWS + i;
        reads[to.x] = factor(rates[head.x]) * y0;
        if (t + 1u <= last) {
            reads[to.y] = factor(rates[head.y]) * y1;
        }
        if (t + 2u <= last) {
            reads[to.z] = factor(rates[head.z]) * y2;
        }
        if (t + 3u <= last) {
            reads[to.w] = factor(rates[head.w]) * y3;
        }
    }
}
