// gdn_reads: what the chunk-boundary states give dq, dk and dlog_decay; one workgroup per chunk
// bind 0  in     dout     f32[N, Hv, Dv]
// bind 1  in     dv       f32[N, Hv, Dv]
// bind 2  in     gap      f32[N, Hv, Dv]
// bind 3  in     rates    f32[N, Hv, 4]
// bind 4  in     states   f32[G, NC, Dk, Dv]
// bind 5  in     dstates  f32[G, NC, Dk, Dv]
// bind 6  inout  reads    f32[N, Hv, 3, Dk]  rows of this group's scans: decayed state · dout (to dq), -decayed state · dv,
//                                            dstate · what token t adds to the chunk's last state (both to dk)
// bind 7  inout  carry    f32[N, Hv]         likewise: sum(state * dstate) times the chunk's whole decay, for all its tokens
// const   DK, DV  head dims; L tokens per chunk; WG invocations, a power of two
// grid    G * NC
// numerics  f32, sums in a fixed order
// see     gdn_dqk.wgsl

@group(0) @binding(0) var<storage, read> dout: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> dv: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> gap: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> rates: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> states: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> dstates: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> reads: array<f32>;
@group(0) @binding(7) var<storage, read_write> carry: array<f32>;
@group(0) @binding(8) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_sum.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let chunk = group_index(group, groups);
    if (chunk >= p.G * p.NC) {
        return;
    }
    let scan = p.scan0 + chunk / p.NC;
    let c = chunk % p.NC;
    let h = scan % p.Hv;
    let n0 = (scan / p.Hv) * p.T + c * L;
    let last = min(L, p.T - c * L) - 1u;
    var both = 0.0;
    for (var i = lane; i < DK; i += WG) {
        let base = (chunk * DK + i) * (DV / 4u);
        var row: array<vec4<f32>, DV / 4u>;
        for (var j = 0u; j < DV / 4u; j++) {
            row[j] = states[base + j];
        }
        for (var t = 0u; t <= last; t += 4u) {
            let n = n0 + min(vec4<u32>(t, t + 1u, t + 2u, t + 3u), vec4<u32>(last));
            let head = n * p.Hv + h;
            let at = head * (DV / 4u);
            var xo = vec4<f32>(0.0);
            var xv = vec4<f32>(0.0);
            for (var j = 0u; j < DV / 4u; j++) {
                let s = row[j];
                xo += vec4<f32>(dot(dout[at.x + j], s), dot(dout[at.y + j], s), dot(dout[at.z + j], s), dot(dout[at.w + j], s));
                xv += vec4<f32>(dot(dv[at.x + j], s), dot(dv[at.y + j], s), dot(dv[at.z + j], s), dot(dv[at.w + j], s));
            }
            for (var j = 0u; j < 4u && t + j <= last; j++) {
                let into = rates[head[j]].y;
                reads[head[j] * (3u * DK) + i] = into * xo[j];
                reads[head[j] * (3u * DK) + DK + i] = -into * xv[j];
            }
        }
        var dot_both = 0.0;
        for (var j = 0u; j < DV / 4u; j++) {
            let d = dstates[base + j];
            dot_both += dot(row[j], d);
            row[j] = d;
        }
        both += dot_both;
        for (var t = 0u; t <= last; t += 4u) {
            let n = n0 + min(vec4<u32>(t, t + 1u, t + 2u, t + 3u), vec4<u32>(last));
            let head = n * p.Hv + h;
            let at = head * (DV / 4u);
            var x = vec4<f32>(0.0);
            for (var j = 0u; j < DV / 4u; j++) {
                let s = row[j];
                x += vec4<f32>(dot(gap[at.x + j], s), dot(gap[at.y + j], s), dot(gap[at.z + j], s), dot(gap[at.w + j], s));
            }
            for (var j = 0u; j < 4u && t + j <= last; j++) {
                let rate = rates[head[j]];
                reads[head[j] * (3u * DK) + 2u * DK + i] = rate.x * rate.z * x[j];
            }
        }
    }
    let total = group_sum(both, lane) * rates[(n0 + last) * p.Hv + h].y;
    for (var t = lane; t <= last; t += WG) {
        carry[(n0 + t) * p.Hv + h] = total;
    }
}
