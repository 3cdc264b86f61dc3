// gdn_l2norm_bwd: dqkv; dq and dk come per value head and are summed over those that share a key head
// bind 0  in   qkv   f32[N, 2*Hk*Dk + Hv*Dv]
// bind 1  in   dq    f32[N, Hv, Dk]
// bind 2  in   dk    f32[N, Hv, Dk]
// bind 3  in   dv    f32[N, Hv, Dv]
// bind 4  out  dqkv  f32[N, 2*Hk*Dk + Hv*Dv]
// const   WG  invocations, a power of two
// grid    N * (2 * Hk + Hv)
// numerics  f32 sums in a fixed order; r d - r³ x (d·x) as r (d - (r x) (d·(r x)))
// see     gdn_l2norm_fwd.wgsl

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read> dq: array<f32>;
@group(0) @binding(2) var<storage, read> dk: array<f32>;
@group(0) @binding(3) var<storage, read> dv: array<f32>;
@group(0) @binding(4) var<storage, read_write> dqkv: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_sum.wgsl

// sum of dq (is_q) or dk over the value heads of key head h, at element i
fn from_heads(is_q: bool, n: u32, h: u32, i: u32) -> f32 {
    let rep = p.Hv / p.Hk;
    var sum = 0.0;
    for (var j = 0u; j < rep; j++) {
        let at = (n * p.Hv + h * rep + j) * p.Dk + i;
        if (is_q) {
            sum += dq[at];
        } else {
            sum += dk[at];
        }
    }
    return sum;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let id = group_index(group, groups);
    let heads = 2u * p.Hk + p.Hv;
    let n = id / heads;
    if (n >= p.N) {
        return;
    }
    let head = id % heads;
    let row = n * (2u * p.Hk * p.Dk + p.Hv * p.Dv);
    if (head >= 2u * p.Hk) {
        let h = head - 2u * p.Hk;
        let base = row + 2u * p.Hk * p.Dk + h * p.Dv;
        for (var i = lane; i < p.Dv; i += WG) {
            dqkv[base + i] = dv[(n * p.Hv + h) * p.Dv + i];
        }
        return;
    }
    let is_q = head < p.Hk;
    let h = head % p.Hk;
    let base = row + head * p.Dk;
    var xx = 0.0;
    var xd = 0.0;
    for (var i = lane; i < p.Dk; i += WG) {
        let x = qkv[base + i];
        xx += x * x;
        xd += x * from_heads(is_q, n, h, i);
    }
    let r = inverseSqrt(group_sum(xx, lane) + p.eps);
    let along = r * group_sum(xd, lane);
    let scale = r * select(1.0, inverseSqrt(f32(p.Dk)), is_q);
    for (var i = lane; i < p.Dk; i += WG) {
        dqkv[base + i] = scale * (from_heads(is_q, n, h, i) - r * qkv[base + i] * along);
    }
}
