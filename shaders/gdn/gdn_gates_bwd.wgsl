// gdn_gates_bwd: da and db of gdn_gates_fwd
// bind 0  in   a           f32[N, Hv]
// bind 1  in   b           f32[N, Hv]
// bind 2  in   a_log       f32[Hv]
// bind 3  in   dt_bias     f32[Hv]
// bind 4  in   dlog_decay  f32[N, Hv]
// bind 5  in   dbeta       f32[N, Hv]
// bind 6  out  da          f32[N, Hv]
// bind 7  out  db          f32[N, Hv]
// const   WG  invocations
// grid    cdiv(N * Hv, WG)
// numerics  f32
// see     gdn_gates_fwd.wgsl

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> a_log: array<f32>;
@group(0) @binding(3) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(4) var<storage, read> dlog_decay: array<f32>;
@group(0) @binding(5) var<storage, read> dbeta: array<f32>;
@group(0) @binding(6) var<storage, read_write> da: array<f32>;
@group(0) @binding(7) var<storage, read_write> db: array<f32>;
@group(0) @binding(8) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/sigmoid.wgsl
alias PIECE = f32;  // of lib/sigmoid.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if (i >= p.N * p.Hv) {
        return;
    }
    let h = i % p.Hv;
    da[i] = -dlog_decay[i] * exp(a_log[h]) * sigmoid(a[i] + dt_bias[h]);
    db[i] = dbeta[i] * dsigmoid(b[i]);
}
