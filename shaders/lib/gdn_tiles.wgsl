// gdn_tiles: a chunk's 32 rows times 128 columns, 16 deep in workgroup memory, 8 rows of 4 columns an invocation; for GPUs
// Of 128 invocations the 32 of a row of blocks read the same inputs, and neighbouring weights.
// Unrolled by hand, and the second index of inputs and the first of weights are constants: an index costs more than its load.

const WIDTH: u32 = 128u;
const DEPTH: u32 = 16u;
var<workgroup> tile_x: array<array<vec4<f32>, 4>, 32>;   // [4 * block of 4 rows + step][row of the block]: 4 deep
var<workgroup> tile_w: array<array<vec4<f32>, 128>, 4>;  // [depth in the step][slot of step and block]: 4 columns

struct Sums {
    top: mat4x4<f32>,     // a row of 4 columns each
    bottom: mat4x4<f32>,  // the 4 rows behind them
}

// Steps lie swapped around: neighbouring invocations that hold the 4 steps of the same block write to distinct banks.
fn slot(step: u32, block: u32) -> u32 {
    return step * 32u + (block ^ (2u * step));
}

// An invocation brings 4 deep of the row lane / 4, step lane % 4 ...
fn put_inputs(lane: u32, x: vec4<f32>) {
    tile_x[lane / 16u * 4u + lane % 4u][lane / 4u % 4u] = x;
}

// ... and a step's 4 rows of 4 columns.
fn put_weights(step: u32, block: u32, w: mat4x4<f32>) {
    let at = slot(step, block);
    tile_w[0u][at] = w[0];
    tile_w[1u][at] = w[1];
    tile_w[2u][at] = w[2];
    tile_w[3u][at] = w[3];
}

fn inputs(rows: u32, step: u32) -> mat4x4<f32> {
    let at = rows * 4u + step;
    return mat4x4<f32>(tile_x[at][0u], tile_x[at][1u], tile_x[at][2u], tile_x[at][3u]);
}

fn weights(step: u32, block: u32) -> mat4x4<f32> {
    let at = slot(step, block);
    return mat4x4<f32>(tile_w[0u][at], tile_w[1u][at], tile_w[2u][at], tile_w[3u][at]);
}

fn plus(sum: vec4<f32>, w: mat4x4<f32>, x: vec4<f32>) -> vec4<f32> {
    return (((sum + w[0] * x.x) + w[1] * x.y) + w[2] * x.z) + w[3] * x.w;
}

fn plus4(sum: mat4x4<f32>, w: mat4x4<f32>, x: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(plus(sum[0], w, x[0]), plus(sum[1], w, x[1]), plus(sum[2], w, x[2]), plus(sum[3], w, x[3]));
}

fn plus_step(sums: Sums, lane: u32, step: u32) -> Sums {
    let rows = lane / 32u * 2u;
    let w = weights(step, lane % 32u);
    return Sums(plus4(sums.top, w, inputs(rows, step)), plus4(sums.bottom, w, inputs(rows + 1u, step)));
}

// `sums` with the product of the two tiles added.
fn plus_tiles(sums: Sums, lane: u32) -> Sums {
    let a = plus_step(sums, lane, 0u);
    let b = plus_step(a, lane, 1u);
    let c = plus_step(b, lane, 2u);
    return plus_step(c, lane, 3u);
}
