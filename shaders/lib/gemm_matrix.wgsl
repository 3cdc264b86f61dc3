// gemm_matrix: a GEMM on matrix units by tiles of 128 x 128 results, 32 deep in workgroup memory as f16, sums in f32
// Four subgroups of 64 x 64 results each. The next tile's loads run while this one is multiplied. Unrolled by hand: matrices
// cannot be indexed. matrix_{f16,signs}_{nt,nn} say how the weights' tile is fetched, lies in memory and is read.

//!include lib/group_index.wgsl

const TILE: u32 = 128u;
const DEPTH: u32 = 32u;
const PITCH: u32 = 10u;  // vec4s a row of the inputs' tile: 8, and 2 against bank conflicts
const RESULT_PITCH: u32 = 132u;
const TALL: u32 = 8u;  // tiles of a column of tiles that run side by side, to find their weights in the cache
var<workgroup> tile_x: array<vec4<f16>, TILE * PITCH>;
var<workgroup> results: array<f32, 32u * RESULT_PITCH>;  // 16 rows of each of the two rows of subgroups

struct Inputs {
    r0: vec4<f32>, r1: vec4<f32>, r2: vec4<f32>, r3: vec4<f32>,
    r4: vec4<f32>, r5: vec4<f32>, r6: vec4<f32>, r7: vec4<f32>,
}

// Columns c .. c + 4 of a row; rows past the end repeat the last one and are not stored, columns past it are zero.
fn input_or_zero(row: u32, c: u32) -> vec4<f32> {
    return select(vec4<f32>(), input4(min(row, p.N - 1u), min(c, p.inner - 4u)), c < p.inner);
}

fn fetch_inputs(row: u32, c: u32) -> Inputs {
    return Inputs(
        input_or_zero(row, c), input_or_zero(row + 16u, c), input_or_zero(row + 32u, c), input_or_zero(row + 48u, c),
        input_or_zero(row + 64u, c), input_or_zero(row + 80u, c), input_or_zero(row + 96u, c), input_or_zero(row + 112u, c),
    );
}

fn stash_inputs(slot: u32, scale: vec4<f32>, t: Inputs) {
    tile_x[slot] = vec4<f16>(t.r0 * scale);
    tile_x[slot + 16u * PITCH] = vec4<f16>(t.r1 * scale);
    tile_x[slot + 32u * PITCH] = vec4<f16>(t.r2 * scale);
    tile_x[slot + 48u * PITCH] = vec4<f16>(t.r3 * scale);
    tile_x[slot + 64u * PITCH] = vec4<f16>(t.r4 * scale);
    tile_x[slot + 80u * PITCH] = vec4<f16>(t.r5 * scale);
    tile_x[slot + 96u * PITCH] = vec4<f16>(t.r6 * scale);
    tile_x[slot + 112u * PITCH] = vec4<f16>(t.r7 * scale);
}

// Row of the tile of row r of the results in workgroup memory, in round i.
fn tile_row(r: u32, i: u32) -> u32 {
    return r / 16u * 64u + 16u * i + r % 16u;
}

fn begin_results(first_row: u32, col: u32, lane: u32, i: u32) {
    workgroupBarrier();
    for (var r = 0u; r < 32u; r++) {
        results[r * RESULT_PITCH + lane] = begin(first_row + tile_row(r, i), col);
    }
    workgroupBarrier();
}

// Store round i's results of one column; returns what they add to the column's sum.
fn finish_results(first_row: u32, col: u32, lane: u32, i: u32) -> f32 {
    var sum = 0.0;
    for (var r = 0u; r < 32u; r++) {
        let row = first_row + tile_row(r, i);
        let value = results[r * RESULT_PITCH + lane];
        put(row, col, value);
        if (REDUCES && row < p.N && col < p.outer) {
            sum += value * other(row, col);
        }
    }
    return sum;
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let down = (p.N + TILE - 1u) / TILE;
    let across = (p.outer + TILE - 1u) / TILE;
    let tile = group_index(group, groups);
    let band = tile / (TALL * across);
    let tall = min(down - band * TALL, TALL);
    let within = tile - band * TALL * across;
    let tile_y = band * TALL + within % tall;
    let first_row = select(p.N, tile_y * TILE, tile < down * across);  // no early return: matrices need uniform control flow
    let first_col = within / tall * TILE;
    let subgroup = lane / 32u;
    let sub_row = subgroup / 2u * 64u;
    let sub_col = subgroup % 2u * 64u;
    let load_row = first_row + lane / 8u;
    let load_c = 4u * (lane % 8u);
    let slot = lane / 8u * PITCH + lane % 8u;
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
    let result_pitch = RESULT_PITCH;
    let out0 = sub_row / 4u * RESULT_PITCH + sub_col;
    let out1 = out0 + 16u;
    let out2 = out0 + 32u;
    let out3 = out0 + 48u;
    if (ACC) {  // two ifs: naga takes the value of && for one that is not uniform
        if (CONTINUES) {
            begin_results(first_row, first_col + lane, lane, 0u);
            c00 = coopLoadT<coop_mat16x16<f32, C>>(&results[out0], result_pitch);
            c01 = coopLoadT<coop_mat16x16<f32, C>>(&results[out1], result_pitch);
            c02 = coopLoadT<coop_mat16x16<f32, C>>(&results[out2], result_pitch);
            c03 = coopLoadT<coop_mat16x16<f32, C>>(&results[out3], result_pitch);
            begin_results(first_row, first_col + lane, lane, 1u);
            c10 = coopLoadT<coop_mat16x16<f32, C>>(&results[out0], result_pitch);
            c11 = coopLoadT<coop_mat16x16<f32, C>>(&results[out1], result_pitch);
            c12 = coopLoadT<coop_mat16x16<f32, C>>(&results[out2], result_pitch);
            c13 = coopLoadT<coop_mat16x16<f32, C>>(&results[out3], result_pitch);
            begin_results(first_row, first_col + lane, lane, 2u);
            c20 = coopLoadT<coop_mat16x16<f32, C>>(&results[out0], result_pitch);
            c21 = coopLoadT<coop_mat16x16<f32, C>>(&results[out1], result_pitch);
            c22 = coopLoadT<coop_mat16x16<f32, C>>(&results[out2], result_pitch);
            c23 = coopLoadT<coop_mat16x16<f32, C>>(&results[out3], result_pitch);
            begin_results(first_row, first_col + lane, lane, 3u);
            c30 = coopLoadT<coop_mat16x16<f32, C>>(&results[out0], result_pitch);
            c31 = coopLoadT<coop_mat16x16<f32, C>>(&results[out1], result_pitch);
            c32 = coopLoadT<coop_mat16x16<f32, C>>(&results[out2], result_pitch);
            c33 = coopLoadT<coop_mat16x16<f32, C>>(&results[out3], result_pitch);
        }
    }
    prepare_weights(lane);
    let pitch = PITCH;
    var next_x = fetch_inputs(load_row, load_c);
    var next_w = fetch_weights(lane, 0u, first_col);
    for (var c = 0u; c < p.inner; c += DEPTH) {
        workgroupBarrier();  // the tiles of the step before have been read
        stash_inputs(slot, input_scale4(min(c + load_c, p.inner - 4u)), next_x);
        stash_weights(lane, next_w);
        workgroupBarrier();
        next_x = fetch_inputs(load_row, c + DEPTH + load_c);
        next_w = fetch_weights(lane, c + DEPTH, first_col);
        for (var step = 0u; step < DEPTH; step += 16u) {
            let at_x0 = sub_row * PITCH + step / 4u;
            let at_x1 = at_x0 + 16u * PITCH;
            let at_x2 = at_x0 + 32u * PITCH;
            let at_x3 = at_x0 + 48u * PITCH;
            let x0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x0], pitch);
            let x1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x1], pitch);
            let x2 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x2], pitch);
            let x3 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x3], pitch);
            let at_w0 = weight_at(sub_col, step);
            let w0 = weight_matrix(at_w0);
            c00 = coopMultiplyAdd(x0, w0, c00);
            c10 = coopMultiplyAdd(x1, w0, c10);
            c20 = coopMultiplyAdd(x2, w0, c20);
            c30 = coopMultiplyAdd(x3, w0, c30);
            let at_w1 = weight_at(sub_col + 16u, step);
            let w1 = weight_matrix(at_w1);
            c01 = coopMultiplyAdd(x0, w1, c01);
            c11 = coopMultiplyAdd(x1, w1, c11);
            c21 = coopMultiplyAdd(x2, w1, c21);
            c31 = coopMultiplyAdd(x3, w1, c31);
            let at_w2 = weight_at(sub_col + 32u, step);
            let w2 = weight_matrix(at_w2);
            c02 = coopMultiplyAdd(x0, w2, c02);
            c12 = coopMultiplyAdd(x1, w2, c12);
            c22 = coopMultiplyAdd(x2, w2, c22);
            c32 = coopMultiplyAdd(x3, w2, c32);
            let at_w3 = weight_at(sub_col + 48u, step);
            let w3 = weight_matrix(at_w3);
            c03 = coopMultiplyAdd(x0, w3, c03);
            c13 = coopMultiplyAdd(x1, w3, c13);
            c23 = coopMultiplyAdd(x2, w3, c23);
            c33 = coopMultiplyAdd(x3, w3, c33);
        }
    }
    let col = first_col + lane;
    coopStoreT(c00, &results[out0], result_pitch);
    coopStoreT(c01, &results[out1], result_pitch);
    coopStoreT(c02, &results[out2], result_pitch);
    coopStoreT(c03, &results[out3], result_pitch);
    workgroupBarrier();
    var sum = finish_results(first_row, col, lane, 0u);
    workgroupBarrier();
    coopStoreT(c10, &results[out0], result_pitch);
    coopStoreT(c11, &results[out1], result_pitch);
    coopStoreT(c12, &results[out2], result_pitch);
    coopStoreT(c13, &results[out3], result_pitch);
    workgroupBarrier();
    sum += finish_results(first_row, col, lane, 1u);
    workgroupBarrier();
    coopStoreT(c20, &results[out0], result_pitch);
    coopStoreT(c21, &results[out1], result_pitch);
    coopStoreT(c22, &results[out2], result_pitch);
    coopStoreT(c23, &results[out3], result_pitch);
    workgroupBarrier();
    sum += finish_results(first_row, col, lane, 2u);
    workgroupBarrier();
    coopStoreT(c30, &results[out0], result_pitch);
    coopStoreT(c31, &results[out1], result_pitch);
    coopStoreT(c32, &results[out2], result_pitch);
    coopStoreT(c33, &results[out3], result_pitch);
    workgroupBarrier();
    sum += finish_results(first_row, col, lane, 3u);
    if (REDUCES && first_row < p.N && col < p.outer) {
        put_sum(tile_y, col, sum);
    }
}
