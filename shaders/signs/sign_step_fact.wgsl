// sign_step_fact: latents and bits after a step along q / sqrt(factored second moment)
// bind 0  in     q      f32[R, L]
// bind 1  inout  lat    f16[R, 32*W]
// bind 2  inout  bits   u32[B, W]  B >= R
// bind 3  in     ema    f32[R + C + 3]
// bind 4  inout  tally  u32[T]
// bind 5  in     hyper  f32[12]
// const   WG  invocations per workgroup, a multiple of 16
// grid    R * 16 * W / WG; the body is lib/sign_move.wgsl
// numerics  f32; latents are rounded by integer arithmetic

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read_write> lat: array<u32>;
@group(0) @binding(2) var<storage, read_write> bits: array<u32>;
@group(0) @binding(3) var<storage, read> ema: array<f32>;
@group(0) @binding(4) var<storage, read_write> tally: array<atomic<u32>>;
@group(0) @binding(5) var<storage, read> hyper: array<f32>;
@group(0) @binding(6) var<uniform> p: Params;

fn directions(i: u32, row: u32, col: u32) -> vec2<f32> {
    let at = row * p.L + col;
    return vec2<f32>(
        ratio(q[at], root_size(factored(row, col))),
        ratio(q[at + 1u], root_size(factored(row, col + 1u))),
    );
}
