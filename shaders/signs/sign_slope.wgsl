// sign_slope: gradients become q = G·k·(1 - tanh²(k·lat)); the mean of q² of every row; non-finite ones are counted and stop the step
// bind 0  inout  g      f32[R, L]     columns C .. L stay
// bind 1  in     lat    f16[R, 32*W]
// bind 2  out    rows   f32[R]
// bind 3  inout  tally  u32[T]
// bind 4  in     hyper  f32[12]
// const   WG  invocations per row, a power of two
// grid    R
// numerics  f32; 1 - tanh² as 4 e / (1 + e)², e = exp(-2 |z|), |z| at most 15: it does not cancel

@group(0) @binding(0) var<storage, read_write> g: array<f32>;
@group(0) @binding(1) var<storage, read> lat: array<u32>;
@group(0) @binding(2) var<storage, read_write> rows: array<f32>;
@group(0) @binding(3) var<storage, read_write> tally: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read> hyper: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_sum.wgsl
//!include lib/latents.wgsl
//!include lib/sign_hyper.wgsl
//!include lib/finite.wgsl

fn falloff(latent: f32) -> f32 {
    let e = exp(-2.0 * min(abs(hyper[SLOPE] * latent), 15.0));
    return 4.0 * e / ((1.0 + e) * (1.0 + e));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_index(group, groups);
    if (row >= p.R) {
        return;
    }
    let factor = hyper[UNSCALE] * hyper[SLOPE];
    var sum = 0.0;
    var bad = 0u;
    for (var col = 2u * lane; col < p.C; col += 2u * WG) {
        let latents = half_values(lat[row * (16u * p.W) + col / 2u]);
        for (var j = 0u; j < 2u; j++) {
            let at = row * p.L + col + j;
            let q = g[at] * factor * falloff(latents[j]);
            let square = q * q;
            let good = is_finite(g[at]) && is_finite(square);
            g[at] = select(0.0, q, good);
            sum += select(0.0, square, good);
            bad += u32(!good);
        }
    }
    if (bad > 0u) {
        atomicStore(&tally[STOP], 1u);
        atomicAdd(&tally[NON_FINITE], bad);
    }
    let total = group_sum(sum, lane);
    if (lane == 0u) {
        rows[row] = total / f32(p.C);
    }
}
