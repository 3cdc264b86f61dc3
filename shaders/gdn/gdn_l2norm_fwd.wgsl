// gdn_l2norm_fwd: q and k of unit length per head, q also over sqrt(Dk), v as it is; one workgroup per row and head
// bind 0  in   qkv  f32[N, 2*Hk*Dk + Hv*Dv]  sections q, k, v
// bind 1  out  q    f32[N, Hk, Dk]
// bind 2  out  k    f32[N, Hk, Dk]
// bind 3  out  v    f32[N, Hv, Dv]
// const   WG  invocations, a power of two
// grid    N * (2 * Hk + Hv)
// numerics  f32 sums in a fixed tree order; eps inside the root
// see     gdn_l2norm_bwd.wgsl

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read_write> q: array<f32>;
@group(0) @binding(2) var<storage, read_write> k: array<f32>;
@group(0) @binding(3) var<storage, read_write> v: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_sum.wgsl

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
            v[(n * p.Hv + h) * p.Dv + i] = qkv[base + i];
        }
        return;
    }
    let base = row + head * p.Dk;
    var sum = 0.0;
    for (var i = lane; i < p.Dk; i += WG) {
        sum += qkv[base + i] * qkv[base + i];
    }
    let r = inverseSqrt(group_sum(sum, lane) + p.eps);
    if (head < p.Hk) {
        let scale = r * inverseSqrt(f32(p.Dk));
        for (var i = lane; i < p.Dk; i += WG) {
            q[(n * p.Hk + head) * p.Dk + i] = qkv[base + i] * scale;
        }
    } else {
        for (var i = lane; i < p.Dk; i += WG) {
            k[(n * p.Hk + head - p.Hk) * p.Dk + i] = qkv[base + i] * r;
        }
    }
}
