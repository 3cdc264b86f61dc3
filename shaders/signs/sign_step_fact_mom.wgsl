// sign_step_fact_mom: latents and bits after a step along m̂ / sqrt(factored second moment), m the EMA of q
// bind 0  in     q      f32[R, L]
// bind 1  inout  lat    f16[R, 32*W]
// bind 2  inout  bits   u32[B, W]  B >= R
// bind 3  in     ema    f32[R + C + 3]
// bind 4  inout  mom    f16[R, 32*W]
// bind 5  inout  tally  u32[T]
// bind 6  in     hyper  f32[12]
// const   WG  invocations per workgroup, a multiple of 16
// grid    R * 16 * W / WG; the body is lib/sign_move.wgsl
// numerics  f32; latents and m are rounded by integer arithmetic, m to the nearest f16 times a power of two of the matrix

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read_write> lat: array<u32>;
@group(0) @binding(2) var<storage, read_write> bits: array<u32>;
@group(0) @binding(3) var<storage, read> ema: array<f32>;
@group(0) @binding(4) var<storage, read_write> mom: array<u32>;
@group(0) @binding(5) var<storage, read_write> tally: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read> hyper: array<f32>;
@group(0) @binding(7) var<uniform> p: Params;

fn directions(i: u32, row: u32, col: u32) -> vec2<f32> {
    let at = row * p.L + col;
    let first = next_first(mom[i], vec2<f32>(q[at], q[at + 1u]));
    mom[i] = stored_first(first);
    let corrected = first * hyper[FIRST_CORRECTION];
    return vec2<f32>(
        ratio(corrected.x, root_size(factored(row, col))),
        ratio(corrected.y, root_size(factored(row, col + 1u))),
    );
}
