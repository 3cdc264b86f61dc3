// conv_silu_fwd: y = silu(causal depthwise convolution of x), zero before the window; a run of a channel per invocation
// bind 0  in   x  f32[N, C]     row n has position n % T
// bind 1  in   w  f32[C, taps]  the last tap meets the current token
// bind 2  out  y  f32[N, C]
// const   TAPS; RUN tokens per invocation; WG invocations
// grid    N / T * cdiv(T, RUN) * cdiv(C, WG)
// numerics  f32
// see     conv_silu_bwd.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/gdn_conv.wgsl
//!include lib/sigmoid.wgsl
alias PIECE = f32;  // of lib/sigmoid.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let run = conv_run(group_index(group, groups), lane);
    if (!run.inside) {
        return;
    }
    var taps: array<f32, TAPS>;
    var seen: array<f32, TAPS>;  // x of the tokens under the taps
    for (var j = 0u; j < TAPS; j++) {
        taps[j] = w[run.channel * TAPS + j];
    }
    for (var j = 1u; j < TAPS; j++) {
        if (run.first + j >= TAPS) {
            seen[j] = x[run.base + (run.first + j - TAPS) * p.C];
        }
    }
    for (var t = run.first; t < min(run.first + RUN, p.T); t++) {
        y[run.base + t * p.C] = silu(conv_next(&seen, &taps, x[run.base + t * p.C]));
    }
}
