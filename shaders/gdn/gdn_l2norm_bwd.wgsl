// gdn_l2norm_bwd: dqkv; dq and dk come per value head and are summed over those that share a key head
// bind 0  in   qkv   f32[N, 2*Hk*Dk + Hv*Dv]
// bind 1  in   dq    f32[N, Hv, Dk]
// bind 2  in   dk    f32[N, Hv, Dk]
// bind 3  in   dv    f32[N, Hv, Dv]
// bind 4  out  dqkv  f32[N, 2*Hk*Dk + Hv*Dv]
// alias   PIECE  vec4<f32>, or f32 where heads are no whole vec4s
// const   W  elements of a PIECE; LANES  invocations of a head, a power of two; HEADS  heads of a workgroup
// grid    cdiv(N * (2 * Hk + Hv), HEADS)
// numerics  f32 sums in a fixed order; r d - r³ x (d·x) as r (d - (r x) (d·(r x)))
// see     gdn_l2norm_fwd.wgsl

@group(0) @binding(0) var<storage, read> qkv: array<PIECE>;
@group(0) @binding(1) var<storage, read> dq: array<PIECE>;
@group(0) @binding(2) var<storage, read> dk: array<PIECE>;
@group(0) @binding(3) var<storage, read> dv: array<PIECE>;
@group(0) @binding(4) var<storage, read_write> dqkv: array<PIECE>;
@group(0) @binding(5) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/head_sum.wgsl

// sum of dq (is_q) or dk over the value heads of key head h, at piece i
fn from_heads(is_q: bool, n: u32, h: u32, i: u32) -> PIECE {
    let rep = p.Hv / p.Hk;
    let wide = p.Dk / W;
    var sum = PIECE(0.0);
    for (var j = 0u; j < rep; j++) {
        let at = (n * p.Hv + h * rep + j) * wide + i;
        if (is_q) {
            sum += dq[at];
        } else {
            sum += dk[at];
        }
    }
    return sum;
}

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
    let is_q = head < p.Hk;
    var xx = PIECE(0.0);
    var xd = PIECE(0.0);
    if (normed) {
        for (var i = first; i < wide; i += LANES) {
            let x = qkv[base + i];
            xx += x * x;
            xd += x * from_heads(is_q, n, head % p.Hk, i);
        }
    }
    let r = inverseSqrt(head_sum(total(xx), lane) + p.eps);
    let along = r * head_sum(total(xd), lane);
    if (normed) {
        let scale = r * select(1.0, inverseSqrt(f32(p.Dk)), is_q);
        for (var i = first; i < wide; i += LANES) {
            let d = from_heads(is_q, n, head % p.Hk, i);
            dqkv[base + i] = scale * (d - r * qkv[base + i] * along);
        }
    } else if (inside) {
        let h = head - 2u * p.Hk;
        let to_v = row + 2u * p.Hk * wide + h * wide_v;
        for (var i = first; i < wide_v; i += LANES) {
            dqkv[to_v + i] = dv[(n * p.Hv + h) * wide_v + i];
        }
    }
}
