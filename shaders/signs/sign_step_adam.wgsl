// sign_step_adam: latents and bits after a step along m̂ / sqrt(v̂), m and v the EMAs of q and q²
// bind 0  in     q      f32[R, L]
// bind 1  inout  lat    f16[R, 32*W]
// bind 2  inout  bits   u32[B, W]  B >= R
// bind 3  in     ema    f32[R + C + 3]
// bind 4  inout  mom    f16[R, 32*W]
// bind 5  inout  second f32[R, 32*W]
// bind 6  inout  tally  u32[T]
// bind 7  in     hyper  f32[12]
// const   WG  invocations per workgroup, a multiple of 16
// grid    R * 16 * W / WG; the body is lib/sign_move.wgsl
// numerics  f32; latents and m are rounded by integer arithmetic, m to the nearest f16 times a power of two of the matrix

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read_write> lat: array<u32>;
@group(0) @binding(2) var<storage, read_write> bits: array<u32>;
@group(0) @binding(3) var<storage, read> ema: array<f32>;
@group(0) @binding(4) var<storage, read_write> mom: array<u32>;
@group(0) @binding(5) var<storage, read_write> second: array<f32>;
@group(0) @binding(6) var<storage, read_write> tally: array<atomic<u32>>;
@group(0) @binding(7) var<storage, read> hyper: array<f32>;
@group(0) @binding(8) var<uniform> p: Params;

fn directions(i: u32, row: u32, col: u32) -> vec2<f32> {
    let at = row * p.L + col;
    let slope = vec2<f32>(q[at], q[at + 1u]);
    let first = next_first(mom[i], slope);
    mom[i] = stored_first(first);
    let corrected = first * hyper[FIRST_CORRECTION];
    let v = hyper[B2] * vec2<f32>(second[2u * i], second[2u * i + 1u]) + (1.0 - hyper[B2]) * slope * slope;
    second[2u * i] = v.x;
    second[2u * i + 1u] = v.y;
    let size = v * hyper[SECOND_CORRECTION];
    return vec2<f32>(ratio(corrected.x, root_size(size.x)), ratio(corrected.y, root_size(size.y)));
}
