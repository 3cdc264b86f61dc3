// gemm_matrix: a GEMM on matrix units by tiles of 128 x 128 results, 32 deep in workgroup memory as f16, sums in f32
// Four subgroups of 64 x 64 results each. The next tile's loads run while this one is multiplied. Unrolled by hand: matrices
// cannot be indexed. matrix_{f16,signs}_{nt,nn} say how the weights' tile is fetched, lies in memory and is read.
// A factor a column of results is put into the weights, as f16. With ACC the sums go on from the results so far.
// WHOLE: the result and the contraction are whole tiles: loads need no clamps, and results go to memory as they are. Else
// results go through workgroup memory, with bounds checks: naga takes the workgroup's id for a value that is not uniform, so
// that one dispatch cannot have both.
// PER: contraction indices a part where the contraction is cut into parts with results of their own, else 0.

//!include lib/group_index.wgsl

const TILE: u32 = 128u;
const DEPTH: u32 = 32u;
const PITCH: u32 = 10u;  // vec4s a row of the inputs' tile: 8, and 2 against bank conflicts
const RESULT_PITCH: u32 = 20u;
const TALL: u32 = 8u;  // tiles of a column of tiles that run side by side, to find their weights in the cache
var<workgroup> tile_x: array<vec4<f16>, TILE * PITCH>;
var<workgroup> results: array<f32, 4u * 16u * RESULT_PITCH>;  // a matrix of each subgroup: more would halve the occupancy

// Eight rows of four inputs each, 16 rows apart.
struct Inputs {
    x0: vec4<f32>, x1: vec4<f32>, x2: vec4<f32>, x3: vec4<f32>,
    x4: vec4<f32>, x5: vec4<f32>, x6: vec4<f32>, x7: vec4<f32>,
}

// Columns c .. c + 4 of a row; rows past the end repeat the last one and are not stored, columns past it are zero.
fn input_or_zero(row: u32, c: u32) -> vec4<f32> {
    return select(vec4<f32>(), input4(min(row, p.N - 1u), min(c, p.inner - 4u)), c < p.inner);
}

fn fetch_inputs(row: u32, c: u32) -> Inputs {
    var t: Inputs;
    if (WHOLE) {
        let pitch = p.lda / 4u;
        let at = row * pitch + (p.x0 + c) / 4u;
        t = Inputs(
            x[at], x[at + 16u * pitch], x[at + 32u * pitch], x[at + 48u * pitch],
            x[at + 64u * pitch], x[at + 80u * pitch], x[at + 96u * pitch], x[at + 112u * pitch],
        );
    } else {
        t = Inputs(
            input_or_zero(row, c), input_or_zero(row + 16u, c), input_or_zero(row + 32u, c), input_or_zero(row + 48u, c),
            input_or_zero(row + 64u, c), input_or_zero(row + 80u, c), input_or_zero(row + 96u, c), input_or_zero(row + 112u, c),
        );
    }
    return t;
}

fn stash_inputs(slot: u32, t: Inputs, scale: vec4<f32>) {
    tile_x[slot] = vec4<f16>(t.x0 * scale);
    tile_x[slot + 16u * PITCH] = vec4<f16>(t.x1 * scale);
    tile_x[slot + 32u * PITCH] = vec4<f16>(t.x2 * scale);
    tile_x[slot + 48u * PITCH] = vec4<f16>(t.x3 * scale);
    tile_x[slot + 64u * PITCH] = vec4<f16>(t.x4 * scale);
    tile_x[slot + 80u * PITCH] = vec4<f16>(t.x5 * scale);
    tile_x[slot + 96u * PITCH] = vec4<f16>(t.x6 * scale);
    tile_x[slot + 112u * PITCH] = vec4<f16>(t.x7 * scale);
}

// The subgroup's matrix in workgroup memory starts from the results so far, 8 rows of a column an invocation.
fn begin_matrix(part: u32, row: u32, col: u32, at: u32) {
    workgroupBarrier();
    for (var r = 0u; r < 8u; r++) {
        if (row + r < p.N && col < p.outer) {
            results[at + r * RESULT_PITCH] = y[result_at(part, row + r, col)];
        }
    }
    workgroupBarrier();
}

// Store what of the subgroup's matrix lies inside the result.
fn finish_matrix(part: u32, row: u32, col: u32, at: u32) {
    workgroupBarrier();
    for (var r = 0u; r < 8u; r++) {
        if (row + r < p.N && col < p.outer) {
            y[result_at(part, row + r, col)] = results[at + r * RESULT_PITCH];
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
    let down = (p.N + TILE - 1u) / TILE;
    let across = (p.outer + TILE - 1u) / TILE;
    let index = group_index(group, groups);
    let part = index / (down * across);
    let tile = index % (down * across);
    let band = tile / (TALL * across);
    let tall = min(down - band * TALL, TALL);
    let within = tile - band * TALL * across;
    let tile_y = band * TALL + within % tall;
    // no early return for workgroups too many: matrices need uniform control flow
    let first_row = select(p.N, tile_y * TILE, part < PARTS);
    let first_col = within / tall * TILE;
    let first_c = part * PER;
    let end_c = select(min(first_c + PER, p.inner), p.inner, PER == 0u);
    let sub_row = lane / 64u * 64u;
    let sub_col = lane / 32u % 2u * 64u;
    let load_row = first_row + lane / 8u;
    let load_c = 4u * (lane % 8u);
    let slot = lane / 8u * PITCH + lane % 8u;
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
    let y_pitch = p.ldy;
    let y0 = result_at(part, first_row + sub_row, first_col + sub_col);
    let y1 = y0 + 16u * p.ldy;
    let y2 = y0 + 32u * p.ldy;
    let y3 = y0 + 48u * p.ldy;
    if (ACC) {
        if (WHOLE) {
            let at_c00 = y0;
            c00 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c00], y_pitch);
            let at_c01 = y0 + 16u;
            c01 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c01], y_pitch);
            let at_c02 = y0 + 32u;
            c02 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c02], y_pitch);
            let at_c03 = y0 + 48u;
            c03 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c03], y_pitch);
            let at_c10 = y1;
            c10 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c10], y_pitch);
            let at_c11 = y1 + 16u;
            c11 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c11], y_pitch);
            let at_c12 = y1 + 32u;
            c12 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c12], y_pitch);
            let at_c13 = y1 + 48u;
            c13 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c13], y_pitch);
            let at_c20 = y2;
            c20 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c20], y_pitch);
            let at_c21 = y2 + 16u;
            c21 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c21], y_pitch);
            let at_c22 = y2 + 32u;
            c22 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c22], y_pitch);
            let at_c23 = y2 + 48u;
            c23 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c23], y_pitch);
            let at_c30 = y3;
            c30 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c30], y_pitch);
            let at_c31 = y3 + 16u;
            c31 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c31], y_pitch);
            let at_c32 = y3 + 32u;
            c32 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c32], y_pitch);
            let at_c33 = y3 + 48u;
            c33 = coopLoadT<coop_mat16x16<f32, C>>(&y[at_c33], y_pitch);
        } else {
            begin_matrix(part, row, col, mine);
            c00 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row, col + 16u, mine);
            c01 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row, col + 32u, mine);
            c02 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row, col + 48u, mine);
            c03 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 16u, col, mine);
            c10 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 16u, col + 16u, mine);
            c11 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 16u, col + 32u, mine);
            c12 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 16u, col + 48u, mine);
            c13 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 32u, col, mine);
            c20 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 32u, col + 16u, mine);
            c21 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 32u, col + 32u, mine);
            c22 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 32u, col + 48u, mine);
            c23 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 48u, col, mine);
            c30 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 48u, col + 16u, mine);
            c31 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 48u, col + 32u, mine);
            c32 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
            begin_matrix(part, row + 48u, col + 48u, mine);
            c33 = coopLoadT<coop_mat16x16<f32, C>>(&results[matrix], result_pitch);
        }
    }
    let factors = fetch_factors(lane, first_col);
    let last_c = select(p.inner, end_c - DEPTH, WHOLE);  // whole tiles are not left: the last one is fetched twice
    var next_x = fetch_inputs(load_row, min(first_c, last_c) + load_c);
    var scale = input_scale4(min(first_c + load_c, p.inner - 4u));
    var next_w = fetch_weights(lane, min(first_c, last_c), first_col);
    for (var c = first_c; c < end_c; c += DEPTH) {
        workgroupBarrier();  // the tiles of the step before have been read
        stash_inputs(slot, next_x, scale);
        stash_weights(lane, factors, next_w);
        workgroupBarrier();
        let next_c = min(c + DEPTH, last_c);
        next_x = fetch_inputs(load_row, next_c + load_c);
        scale = input_scale4(min(next_c + load_c, p.inner - 4u));
        next_w = fetch_weights(lane, next_c, first_col);
        {
            let at_x0 = (sub_row) * PITCH + 0u;
            let x0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x0], pitch);
            let at_x1 = (sub_row + 16u) * PITCH + 0u;
            let x1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x1], pitch);
            let at_x2 = (sub_row + 32u) * PITCH + 0u;
            let x2 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x2], pitch);
            let at_x3 = (sub_row + 48u) * PITCH + 0u;
            let x3 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x3], pitch);
            let w0 = weight_matrix(weight_at(sub_col, 0u));
            c00 = coopMultiplyAdd(x0, w0, c00);
            c10 = coopMultiplyAdd(x1, w0, c10);
            c20 = coopMultiplyAdd(x2, w0, c20);
            c30 = coopMultiplyAdd(x3, w0, c30);
            let w1 = weight_matrix(weight_at(sub_col + 16u, 0u));
            c01 = coopMultiplyAdd(x0, w1, c01);
            c11 = coopMultiplyAdd(x1, w1, c11);
            c21 = coopMultiplyAdd(x2, w1, c21);
            c31 = coopMultiplyAdd(x3, w1, c31);
            let w2 = weight_matrix(weight_at(sub_col + 32u, 0u));
            c02 = coopMultiplyAdd(x0, w2, c02);
            c12 = coopMultiplyAdd(x1, w2, c12);
            c22 = coopMultiplyAdd(x2, w2, c22);
            c32 = coopMultiplyAdd(x3, w2, c32);
            let w3 = weight_matrix(weight_at(sub_col + 48u, 0u));
            c03 = coopMultiplyAdd(x0, w3, c03);
            c13 = coopMultiplyAdd(x1, w3, c13);
            c23 = coopMultiplyAdd(x2, w3, c23);
            c33 = coopMultiplyAdd(x3, w3, c33);
        }
        {
            let at_x0 = (sub_row) * PITCH + 4u;
            let x0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x0], pitch);
            let at_x1 = (sub_row + 16u) * PITCH + 4u;
            let x1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x1], pitch);
            let at_x2 = (sub_row + 32u) * PITCH + 4u;
            let x2 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x2], pitch);
            let at_x3 = (sub_row + 48u) * PITCH + 4u;
            let x3 = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x3], pitch);
            let w0 = weight_matrix(weight_at(sub_col, 16u));
            c00 = coopMultiplyAdd(x0, w0, c00);
            c10 = coopMultiplyAdd(x1, w0, c10);
            c20 = coopMultiplyAdd(x2, w0, c20);
            c30 = coopMultiplyAdd(x3, w0, c30);
            let w1 = weight_matrix(weight_at(sub_col + 16u, 16u));
            c01 = coopMultiplyAdd(x0, w1, c01);
            c11 = coopMultiplyAdd(x1, w1, c11);
            c21 = coopMultiplyAdd(x2, w1, c21);
            c31 = coopMultiplyAdd(x3, w1, c31);
            let w2 = weight_matrix(weight_at(sub_col + 32u, 16u));
            c02 = coopMultiplyAdd(x0, w2, c02);
            c12 = coopMultiplyAdd(x1, w2, c12);
            c22 = coopMultiplyAdd(x2, w2, c22);
            c32 = coopMultiplyAdd(x3, w2, c32);
            let w3 = weight_matrix(weight_at(sub_col + 48u, 16u));
            c03 = coopMultiplyAdd(x0, w3, c03);
            c13 = coopMultiplyAdd(x1, w3, c13);
            c23 = coopMultiplyAdd(x2, w3, c23);
            c33 = coopMultiplyAdd(x3, w3, c33);
        }
    }
    if (WHOLE) {
        let at_y00 = y0;
        coopStoreT(c00, &y[at_y00], y_pitch);
        let at_y01 = y0 + 16u;
        coopStoreT(c01, &y[at_y01], y_pitch);
        let at_y02 = y0 + 32u;
        coopStoreT(c02, &y[at_y02], y_pitch);
        let at_y03 = y0 + 48u;
        coopStoreT(c03, &y[at_y03], y_pitch);
        let at_y10 = y1;
        coopStoreT(c10, &y[at_y10], y_pitch);
        let at_y11 = y1 + 16u;
        coopStoreT(c11, &y[at_y11], y_pitch);
        let at_y12 = y1 + 32u;
        coopStoreT(c12, &y[at_y12], y_pitch);
        let at_y13 = y1 + 48u;
        coopStoreT(c13, &y[at_y13], y_pitch);
        let at_y20 = y2;
        coopStoreT(c20, &y[at_y20], y_pitch);
        let at_y21 = y2 + 16u;
        coopStoreT(c21, &y[at_y21], y_pitch);
        let at_y22 = y2 + 32u;
        coopStoreT(c22, &y[at_y22], y_pitch);
        let at_y23 = y2 + 48u;
        coopStoreT(c23, &y[at_y23], y_pitch);
        let at_y30 = y3;
        coopStoreT(c30, &y[at_y30], y_pitch);
        let at_y31 = y3 + 16u;
        coopStoreT(c31, &y[at_y31], y_pitch);
        let at_y32 = y3 + 32u;
        coopStoreT(c32, &y[at_y32], y_pitch);
        let at_y33 = y3 + 48u;
        coopStoreT(c33, &y[at_y33], y_pitch);
    } else {
        workgroupBarrier();
        coopStoreT(c00, &results[matrix], result_pitch);
        finish_matrix(part, row, col, mine);
        coopStoreT(c01, &results[matrix], result_pitch);
        finish_matrix(part, row, col + 16u, mine);
        coopStoreT(c02, &results[matrix], result_pitch);
        finish_matrix(part, row, col + 32u, mine);
        coopStoreT(c03, &results[matrix], result_pitch);
        finish_matrix(part, row, col + 48u, mine);
        coopStoreT(c10, &results[matrix], result_pitch);
        finish_matrix(part, row + 16u, col, mine);
        coopStoreT(c11, &results[matrix], result_pitch);
        finish_matrix(part, row + 16u, col + 16u, mine);
        coopStoreT(c12, &results[matrix], result_pitch);
        finish_matrix(part, row + 16u, col + 32u, mine);
        coopStoreT(c13, &results[matrix], result_pitch);
        finish_matrix(part, row + 16u, col + 48u, mine);
        coopStoreT(c20, &results[matrix], result_pitch);
        finish_matrix(part, row + 32u, col, mine);
        coopStoreT(c21, &results[matrix], result_pitch);
        finish_matrix(part, row + 32u, col + 16u, mine);
        coopStoreT(c22, &results[matrix], result_pitch);
        finish_matrix(part, row + 32u, col + 32u, mine);
        coopStoreT(c23, &results[matrix], result_pitch);
        finish_matrix(part, row + 32u, col + 48u, mine);
        coopStoreT(c30, &results[matrix], result_pitch);
        finish_matrix(part, row + 48u, col, mine);
        coopStoreT(c31, &results[matrix], result_pitch);
        finish_matrix(part, row + 48u, col + 16u, mine);
        coopStoreT(c32, &results[matrix], result_pitch);
        finish_matrix(part, row + 48u, col + 32u, mine);
        coopStoreT(c33, &results[matrix], result_pitch);
        finish_matrix(part, row + 48u, col + 48u, mine);
    }
}
