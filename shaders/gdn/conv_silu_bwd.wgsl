// conv_silu_bwd: dx of conv_silu_fwd, whose sums are made anew; a run of a channel per invocation
// bind 0  in   x   f32[N, C]     row n has position n % T
// bind 1  in   w   f32[C, taps]
// bind 2  in   dy  f32[N, C]
// bind 3  out  dx  f32[N, C]
// const   TAPS; RUN tokens per invocation; WG invocations
// grid    N / T * cdiv(T, RUN) * cdiv(C, WG)
// numerics  f32
// see     conv_silu_fwd.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read_write> dx: array<f32>;
@group(0) @binding(4) var<uniform> p: Params;

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
    var seen: array<f32, TAPS>;
    var ahead: array<f32, TAPS>;  // gradients at the sums of token t and those before it, last token last
    for (var j = 0u; j < TAPS; j++) {
        taps[j] = w[run.channel * TAPS + j];
    }
    for (var j = 1u; j < TAPS; j++) {
        if (run.first + j >= TAPS) {
            seen[j] = x[run.base + (run.first + j - TAPS) * p.C];
        }
    }
    let end = min(run.first + RUN, p.T);
    // token u = t - (TAPS - 1) meets the taps of tokens u to t, and none behind the window
    for (var t = run.first; t < end + TAPS - 1u; t++) {
        var dsum = 0.0;
        if (t < p.T) {
            dsum = dy[run.base + t * p.C] * dsilu(conv_next(&seen, &taps, x[run.base + t * p.C]));
        }
        for (var j = 0u; j + 1u < TAPS; j++) {
            ahead[j] = ahead[j + 1u];
        }
        ahead[TAPS - 1u] = dsum;
        if (t + 1u >= run.first + TAPS) {
            var sum = 0.0;
            for (var j = 0u; j < TAPS; j++) {
                sum += ahead[j] * taps[TAPS - 1u - j];
            }
            dx[run.base + (t + 1u - TAPS) * p.C] = sum;
        }
    }
}
