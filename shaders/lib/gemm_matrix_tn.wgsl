// gemm_matrix_tn: y_nk = cin_n cout_k Σ_m x_mn w_mk on matrix units: tiles of 128 x 128 results, 32 deep in workgroup memory as f16
// Both inputs lie along the contraction: their tiles are 32 rows of 128 columns, the factors put in before they are rounded.
// Four subgroups of 64 x 64 results each. The next tile's loads run while this one is multiplied. Unrolled by hand: matrices
// cannot be indexed. Results go through workgroup memory, a matrix of each subgroup at a time, with bounds checks.

//!include lib/group_index.wgsl

const TILE: u32 = 128u;
const DEPTH: u32 = 32u;
const PITCH: u32 = 34u;  // vec4s a row of a tile: 32, and 2 against bank conflicts
const RESULT_PITCH: u32 = 20u;
var<workgroup> tile_x: array<vec4<f16>, DEPTH * PITCH>;
var<workgroup> tile_w: array<vec4<f16>, DEPTH * PITCH>;
var<workgroup> results: array<f32, 4u * 16u * RESULT_PITCH>;

// Rows past the end of the contraction are zero; columns past the end repeat the last ones and are not stored.
fn fetch_x(m: u32, n: u32) -> vec4<f32> {
    return select(vec4<f32>(), x[(min(m, p.inner - 1u) * p.N + n) / 4u], m < p.inner);
}

fn fetch_w(m: u32, k: u32) -> vec4<f32> {
    return select(vec4<f32>(), w[(min(m, p.M - 1u) * p.K + k) / 4u], m < p.M);
}

// Store what of the subgroup's matrix lies inside the result, 8 rows of a column an invocation.
fn finish_matrix(row: u32, col: u32, at: u32) {
    workgroupBarrier();
    for (var r = 0u; r < 8u; r++) {
        if (row + r < p.N && col < p.outer) {
            y[(row + r) * p.ldy + p.y0 + col] = results[at + r * RESULT_PITCH];
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let across = (p.outer + TILE - 1u) / TILE;
    let index = group_index(group, groups);
    // no early return for workgroups too many: matrices need uniform control flow
    let first_row = index / across * TILE;
    let first_col = index % across * TILE;
    let sub_row = lane / 64u * 64u;
    let sub_col = lane / 32u % 2u * 64u;
    let load_m = lane / 32u;
    let n = min(first_row + 4u * (lane % 32u), p.N - 4u);
    let k = min(first_col + 4u * (lane % 32u), p.K - 4u);
    let slot = load_m * PITCH + lane % 32u;
    let scale_x = vec4<f32>(cin[n], cin[n + 1u], cin[n + 2u], cin[n + 3u]);
    let scale_w = vec4<f32>(cout[k], cout[k + 1u], cout[k + 2u], cout[k + 3u]);
    let matrix = lane / 32u * (16u * RESULT_PITCH);
    let mine = matrix + lane / 16u % 2u * (8u * RESULT_PITCH) + lane % 16u;
    let row = first_row + sub_row + lane / 16u % 2u * 8u;
    let col = first_col + sub_col + lane % 16u;
    let result_pitch = RESULT_PITCH;
    let pitch = PITCH;
    var c00 = coop_mat16x16<f32, C>();
    var c01 = coop_mat16x16<f32, C>();
    var c02 = coop_mat16x16<f32, C>();
    var c03 = coop_mat16x16<f32, C>();
    var c10 = coop_mat16x16<f32, C>();
    var c11 = coop_mat16x16<f32, C>();
    var c12 = coop_mat16x16<f32, C>();
    var c13 = coop_mat16x16<f32, C>();
    var c20 = coop_mat16x16<f32, C>();
    var c21 = coop_mat16x16<f32, C>();
    var c22 = coop_mat16x16<f32, C>();
    var c23 = coop_mat16x16<f32, C>();
    var c30 = coop_mat16x16<f32, C>();
    var c31 = coop_mat16x16<f32, C>();
    var c32 = coop_mat16x16<f32, C>();
    var c33 = coop_mat16x16<f32, C>();
    var x0 = fetch_x(load_m + 0u, n);
    var x1 = fetch_x(load_m + 4u, n);
    var x2 = fetch_x(load_m + 8u, n);
    var x3 = fetch_x(load_m + 12u, n);
    var x4 = fetch_x(load_m + 16u, n);
    var x5 = fetch_x(load_m + 20u, n);
    var x6 = fetch_x(load_m + 24u, n);
    var x7 = fetch_x(load_m + 28u, n);
    var w0 = fetch_w(load_m + 0u, k);
    var w1 = fetch_w(load_m + 4u, k);
    var w2 = fetch_w(load_m + 8u, k);
    var w3 = fetch_w(load_m + 12u, k);
    var w4 = fetch_w(load_m + 16u, k);
    var w5 = fetch_w(load_m + 20u, k);
    var w6 = fetch_w(load_m + 24u, k);
    var w7 = fetch_w(load_m + 28u, k);
    for (var m = 0u; m < p.inner; m += DEPTH) {
        workgroupBarrier();  // the tiles of the step before have been read
        tile_x[slot + 0u * PITCH] = vec4<f16>(x0 * scale_x);
        tile_x[slot + 4u * PITCH] = vec4<f16>(x1 * scale_x);
        tile_x[slot + 8u * PITCH] = vec4<f16>(x2 * scale_x);
        tile_x[slot + 12u * PITCH] = vec4<f16>(x3 * scale_x);
        tile_x[slot + 16u * PITCH] = vec4<f16>(x4 * scale_x);
        tile_x[slot + 20u * PITCH] = vec4<f16>(x5 * scale_x);
        tile_x[slot + 24u * PITCH] = vec4<f16>(x6 * scale_x);
        tile_x[slot + 28u * PITCH] = vec4<f16>(x7 * scale_x);
        tile_w[slot + 0u * PITCH] = vec4<f16>(w0 * scale_w);
        tile_w[slot + 4u * PITCH] = vec4<f16>(w1 * scale_w);
        tile_w[slot + 8u * PITCH] = vec4<f16>(w2 * scale_w);
        tile_w[slot + 12u * PITCH] = vec4<f16>(w3 * scale_w);
        tile_w[slot + 16u * PITCH] = vec4<f16>(w4 * scale_w);
        tile_w[slot + 20u * PITCH] = vec4<f16>(w5 * scale_w);
        tile_w[slot + 24u * PITCH] = vec4<f16>(w6 * scale_w);
        tile_w[slot + 28u * PITCH] = vec4<f16>(w7 * scale_w);
        workgroupBarrier();
        let next_m = m + DEPTH + load_m;
        x0 = fetch_x(next_m + 0u, n);
        x1 = fetch_x(next_m + 4u, n);
        x2 = fetch_x(next_m + 8u, n);
        x3 = fetch_x(next_m + 12u, n);
        x4 = fetch_x(next_m + 16u, n);
        x5 = fetch_x(next_m + 20u, n);
        x6 = fetch_x(next_m + 24u, n);
        x7 = fetch_x(next_m + 28u, n);
        w0 = fetch_w(next_m + 0u, k);
        w1 = fetch_w(next_m + 4u, k);
        w2 = fetch_w(next_m + 8u, k);
        w3 = fetch_w(next_m + 12u, k);
        w4 = fetch_w(next_m + 16u, k);
        w5 = fetch_w(next_m + 20u, k);
        w6 = fetch_w(next_m + 24u, k);
        w7 = fetch_w(next_m + 28u, k);
        {
            let at_a0 = 0u * PITCH + (sub_row) / 4u;
            let a0 = coopLoad<coop_mat16x16<f16, A>>(&tile_x[at_a0], pitch);
            let at_a1 = 0u * PITCH + (sub_row + 16u) / 4u;
            let a1 = coopLoad<coop_mat16x16<f16, A>>(&tile_x[at_a1], pitch);
            let at_a2 = 0u * PITCH + (sub_row + 32u) / 4u;
            let a2 = coopLoad<coop_mat16x16<f16, A>>(&tile_x[at_a2], pitch);
            let at_a3 = 0u * PITCH + (sub_row + 48u) / 4u;
            let a3 = coopLoad<coop_mat16x16<f16, A>>(&tile_x[at_a3], pitch);
            let at_b0 = 0u * PITCH + (sub_col) / 4u;
            let b0 = coopLoadT<coop_mat16x16<f16, B>>(&tile_w[at_b0], pitch);
            c00 = coopMultiplyAdd(a0, b0, c00);
            c10 = coopMultiplyAdd(a1, b0, c10);
            c20 = coopMultiplyAdd(a2, b0, c20);
            c30 = coopMultiplyAdd(a3, b0, c30);
            let at_b1 = 0u * PITCH + (sub_col + 16u) / 4u;
            let b1 = coopLoadT<coop_mat16x16<f16, B>>(&tile_w[at_b1], pitch);
            c01 = coopMultiplyAdd(a0, b1, c01);
            c11 = coopMultiplyAdd(a1, b1, c11);
            c21 = coopMultiplyAdd(a2, b1, c21);
            c31 = coopMultiplyAdd(a3, b1, c31);
            let at_b2 = 0u * PITCH + (sub_col + 32u) / 4u;
            let b2 = coopLoadT<coop_mat16x16<f16, B>>(&tile_w[at_b2], pitch);
            c02 = coopMultiplyAdd(a0, b2, c02);
            c12 = coopMultiplyAdd(a1, b2, c12);
            c22 = coopMultiplyAdd(a2, b2, c22);
            c32 = coopMultiplyAdd(a3, b2, c32);
            let at_b3 = 0u * PITCH + (sub_col + 48u) / 4u;
            let b3 = coopLoadT<coop_mat16x16<f16, B>>(&tile_w[at_b3], pitch);
            c03 = coopMultiplyAdd(a0, b3, c03);
            c13 = coopMultiplyAdd(a1, b3, c13);
            c23 = coopMultiplyAdd(a2, b3, c23);
            c33 = coopMultiplyAdd(a3, b3, c33);
        }
        {
            let at_a0 = 16u * PITCH + (sub_row) / 4u;
            let a0 = coopLoad<coop_mat16x16<f16, A>>(&tile_x[at_a0], pitch);
            let at_a1 = 16u * PITCH + (sub_row + 16u) / 4u;
            let a1 = coopLoad<coop_mat16x16<f16, A>>(&tile_x[at_a1], pitch);
            let at_a2 = 16u * PITCH + (sub_row + 32u) / 4u;
            let a2 = coopLoad<coop_mat16x16<f16, A>>(&tile_x[at_a2], pitch);
            let at_a3 = 16u * PITCH + (sub_row + 48u) / 4u;
            let a3 = coopLoad<coop_mat16x16<f16, A>>(&tile_x[at_a3], pitch);
            let at_b0 = 16u * PITCH + (sub_col) / 4u;
            let b0 = coopLoadT<coop_mat16x16<f16, B>>(&tile_w[at_b0], pitch);
            c00 = coopMultiplyAdd(a0, b0, c00);
            c10 = coopMultiplyAdd(a1, b0, c10);
            c20 = coopMultiplyAdd(a2, b0, c20);
            c30 = coopMultiplyAdd(a3, b0, c30);
            let at_b1 = 16u * PITCH + (sub_col + 16u) / 4u;
            let b1 = coopLoadT<coop_mat16x16<f16, B>>(&tile_w[at_b1], pitch);
            c01 = coopMultiplyAdd(a0, b1, c01);
            c11 = coopMultiplyAdd(a1, b1, c11);
            c21 = coopMultiplyAdd(a2, b1, c21);
            c31 = coopMultiplyAdd(a3, b1, c31);
            let at_b2 = 16u * PITCH + (sub_col + 32u) / 4u;
            let b2 = coopLoadT<coop_mat16x16<f16, B>>(&tile_w[at_b2], pitch);
            c02 = coopMultiplyAdd(a0, b2, c02);
            c12 = coopMultiplyAdd(a1, b2, c12);
            c22 = coopMultiplyAdd(a2, b2, c22);
            c32 = coopMultiplyAdd(a3, b2, c32);
            let at_b3 = 16u * PITCH + (sub_col + 48u) / 4u;
            let b3 = coopLoadT<coop_mat16x16<f16, B>>(&tile_w[at_b3], pitch);
            c03 = coopMultiplyAdd(a0, b3, c03);
            c13 = coopMultiplyAdd(a1, b3, c13);
            c23 = coopMultiplyAdd(a2, b3, c23);
            c33 = coopMultiplyAdd(a3, b3, c33);
        }
    }
    workgroupBarrier();
    coopStoreT(c00, &results[matrix], result_pitch);
    finish_matrix(row, col, mine);
    coopStoreT(c01, &results[matrix], result_pitch);
    finish_matrix(row, col + 16u, mine);
    coopStoreT(c02, &results[matrix], result_pitch);
    finish_matrix(row, col + 32u, mine);
    coopStoreT(c03, &results[matrix], result_pitch);
    finish_matrix(row, col + 48u, mine);
    coopStoreT(c10, &results[matrix], result_pitch);
    finish_matrix(row + 16u, col, mine);
    coopStoreT(c11, &results[matrix], result_pitch);
    finish_matrix(row + 16u, col + 16u, mine);
    coopStoreT(c12, &results[matrix], result_pitch);
    finish_matrix(row + 16u, col + 32u, mine);
    coopStoreT(c13, &results[matrix], result_pitch);
    finish_matrix(row + 16u, col + 48u, mine);
    coopStoreT(c20, &results[matrix], result_pitch);
    finish_matrix(row + 32u, col, mine);
    coopStoreT(c21, &results[matrix], result_pitch);
    finish_matrix(row + 32u, col + 16u, mine);
    coopStoreT(c22, &results[matrix], result_pitch);
    finish_matrix(row + 32u, col + 32u, mine);
    coopStoreT(c23, &results[matrix], result_pitch);
    finish_matrix(row + 32u, col + 48u, mine);
    coopStoreT(c30, &results[matrix], result_pitch);
    finish_matrix(row + 48u, col, mine);
    coopStoreT(c31, &results[matrix], result_pitch);
    finish_matrix(row + 48u, col + 16u, mine);
    coopStoreT(c32, &results[matrix], result_pitch);
    finish_matrix(row + 48u, col + 32u, mine);
    coopStoreT(c33, &results[matrix], result_pitch);
    finish_matrix(row + 48u, col + 48u, mine);
}
