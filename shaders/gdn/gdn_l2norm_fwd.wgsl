// gdn_l2norm_fwd: q and k of unit length per head, q also over sqrt(Dk), v as it is; a workgroup takes HEADS heads
// bind 0  in   qkv  f32[N, 2*Hk*Dk + Hv*Dv]  sections q, k, v
// bind 1  out  q    f32[N, Hk, Dk]
// bind 2  out  k    f32[N, Hk, Dk]
// bind 3  out  v    f32[N, Hv, Dv]
// alias   PIECE  vec4<f32>, or f32 where heads are no whole vec4s
// const   W  elements of a PIECE; LANES  invocations of a head, a power of two; HEADS  heads of a workgroup
// grid    cdiv(N * (2 * Hk + Hv), HEADS)
// numerics  f32 sums in a fixed tree order; eps inside the root
// see     gdn_l2norm_bwd.wgsl

@group(0) @binding(0) var<storage, read> qkv: array<PIECE>;
@group(0) @binding(1) var<storage, read_write> q: array<PIECE>;
@group(0) @binding(2) var<storage, read_write> k: array<PIECE>;
@group(0) @binding(3) var<storage, read_write> v: array<PIECE>;
@group(0) @binding(4) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/head_sum.wgsl

@compute @workgroup_size(HEADS * LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let id = group_index(group, groups) * HEADS + lane / LANES;
    let first = lane % LANES;
    let heads = 2u * p.Hk + p.Hv;
    let n = id / heads;
    let head = id % heads;
    let wide = p.Dk / W;
    let wide_v = p.Dv / W;
    let row = n * (2u * p.Hk * wide + p.Hv * wide_v);
    let base = row + head * wide;
    let inside = n < p.N;
    let normed = inside && head < 2u * p.Hk;
    var squares = PIECE(0.0);
    if (normed) {
        for (var i = first; i < wide; i += LANES) {
            squares += qkv[base + i] * qkv[base + i];
        }
    }
    let r = inverseSqrt(head_sum(total(squares), lane) + p.eps);
    if (normed && head < p.Hk) {
        let scale = r * inverseSqrt(f32(p.Dk));
        for (var i = first; i < wide; i += LANES) {
            q[(n * p.Hk + head) * wide + i] = qkv[base + i] * scale;
        }
    } else if (normed) {
        for (var i = first; i < wide; i += LANES) {
            k[(n * p.Hk + head - p.Hk) * wide + i] = qkv[base + i] * r;
        }
    } else if (inside) {
        let h = head - 2u * p.Hk;
        let from_v = row + 2u * p.Hk * wide + h * wide_v;
        for (var i = first; i < wide_v; i += LANES) {
            v[(n * p.Hv + h) * wide_v + i] = qkv[from_v + i];
        }
    }
}
