// gdn_gates_fwd: log_decay = -exp(a_log) * softplus(a + dt_bias), beta = sigmoid(b)
// bind 0  in   a          f32[N, Hv]
// bind 1  in   b          f32[N, Hv]
// bind 2  in   a_log      f32[Hv]
// bind 3  in   dt_bias    f32[Hv]
// bind 4  out  log_decay  f32[N, Hv]
// bind 5  out  beta       f32[N, Hv]
// const   WG  invocations
// grid    cdiv(N * Hv, WG)
// numerics  softplus(x) = max(x, 0) + log1p(exp(-|x|)), log1p by its series: the built-in log is only absolutely accurate near 1,
//           and a decay close to 1 acts over thousands of tokens
// see     gdn_gates_bwd.wgsl

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> a_log: array<f32>;
@group(0) @binding(3) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> log_decay: array<f32>;
@group(0) @binding(5) var<storage, read_write> beta: array<f32>;
@group(0) @binding(6) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/sigmoid.wgsl
alias PIECE = f32;  // of lib/sigmoid.wgsl

// log(1 + e) for 0 <= e <= 1: 2 atanh(e / (2 + e)), the argument at most 1/3
fn log1p(e: f32) -> f32 {
    let z = e / (2.0 + e);
    let y = z * z;
    let tail = 1.0 / 9.0 + y * (1.0 / 11.0 + y * (1.0 / 13.0 + y / 15.0));
    return 2.0 * z * (1.0 + y * (1.0 / 3.0 + y * (1.0 / 5.0 + y * (1.0 / 7.0 + y * tail))));
}

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
    let x = a[i] + dt_bias[h];
    let softplus = max(x, 0.0) + log1p(exp(-abs(x)));
    log_decay[i] = -exp(a_log[h]) * softplus;
    beta[i] = sigmoid(b[i]);
}
