// gemm_tiles: a GEMM by tiles of 128 x 128 results, 8 deep in workgroup memory, 8 x 8 results an invocation; for GPUs
// The next tile's loads run while this one is multiplied. tile_nt and tile_nn say how the weights' tile lies in memory.
// Unrolled by hand: a loop over the steps costs a fifth (measured on an H200).

//!include lib/group_index.wgsl

const DEPTH: u32 = 8u;
const PITCH: u32 = 3u;  // a row of two vec4 takes the place of three: odd, so that neighbouring rows lie in distinct banks
var<workgroup> tile_x: array<vec4<f32>, 128u * PITCH>;

fn input_or_zero(row: u32, c: u32) -> vec4<f32> {
    if (row < p.N && c < p.inner) {
        return input4(row, c);
    }
    return vec4<f32>();
}

fn weight_or_zero(m: u32, k: u32) -> vec4<f32> {
    if (m < p.M && k < p.K) {
        return weight4(m, k);
    }
    return vec4<f32>();
}

fn inputs(row: u32, step: u32) -> mat4x4<f32> {
    let at = row * PITCH + step;
    return mat4x4<f32>(tile_x[at], tile_x[at + PITCH], tile_x[at + 2u * PITCH], tile_x[at + 3u * PITCH]);
}

fn begin4(row: u32, col: u32) -> vec4<f32> {
    return vec4<f32>(
        begin(row, col),
        begin(row, col + STRIDE),
        begin(row, col + 2u * STRIDE),
        begin(row, col + 3u * STRIDE),
    );
}

fn begin16(row: u32, col: u32) -> mat4x4<f32> {
    return mat4x4<f32>(begin4(row, col), begin4(row + 1u, col), begin4(row + 2u, col), begin4(row + 3u, col));
}

fn put4(row: u32, col: u32, v: vec4<f32>) {
    put(row, col, v.x);
    put(row, col + STRIDE, v.y);
    put(row, col + 2u * STRIDE, v.z);
    put(row, col + 3u * STRIDE, v.w);
}

fn put16(row: u32, col: u32, v: mat4x4<f32>) {
    put4(row, col, v[0]);
    put4(row + 1u, col, v[1]);
    put4(row + 2u, col, v[2]);
    put4(row + 3u, col, v[3]);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let across = (p.outer + 127u) / 128u;
    let tile = group_index(group, groups);
    let first_row = tile / across * 128u;
    let first_col = tile % across * 128u;
    if (first_row >= p.N) {
        return;
    }
    let load_row = first_row + lane / 2u;
    let load_c = 4u * (lane % 2u);
    let tx = lane % 16u;
    let ty = 8u * (lane / 16u);
    let row = first_row + ty;
    let col = first_col + leading_column(tx);
    var s00 = begin16(row, col);
    var s01 = begin16(row, col + 64u);
    var s10 = begin16(row + 4u, col);
    var s11 = begin16(row + 4u, col + 64u);
    var next_x = input_or_zero(load_row, load_c);
    var next_w = tile_weight(lane, 0u, first_col);
    for (var c = 0u; c < p.inner; c += DEPTH) {
        tile_x[lane / 2u * PITCH + lane % 2u] = next_x;
        tile_w[tile_weight_slot(lane)] = next_w;
        workgroupBarrier();
        next_x = input_or_zero(load_row, c + DEPTH + load_c);
        next_w = tile_weight(lane, c + DEPTH, first_col);
        let x0 = inputs(ty, 0u);
        let x1 = inputs(ty + 4u, 0u);
        let w0 = weights(tx, 0u);
        let w1 = weights(tx + SECOND, 0u);
        s00 += w0 * x0;
        s01 += w1 * x0;
        s10 += w0 * x1;
        s11 += w1 * x1;
        let x2 = inputs(ty, 1u);
        let x3 = inputs(ty + 4u, 1u);
        let w2 = weights(tx, 1u);
        let w3 = weights(tx + SECOND, 1u);
        s00 += w2 * x2;
        s01 += w3 * x2;
        s10 += w2 * x3;
        s11 += w3 * x3;
        workgroupBarrier();  // the next tiles overwrite these
    }
    put16(row, col, s00);
    put16(row, col + 64u, s01);
    put16(row + 4u, col, s10);
    put16(row + 4u, col + 64u, s11);
}
