// gemm_registers: a GEMM by tiles of 8·WG rows x 16 columns in registers, 8 x 16 results an invocation; for CPU adapters
// Lanes take neighbouring rows and share their columns, so that a weight is loaded once for all of them.
// Unrolled by hand: the compiler keeps an array that a loop indexes in memory.

//!include lib/group_index.wgsl

// Column i of a block belongs to row + i·WG; rows past the end repeat the last one and are not stored.
fn inputs(row: u32, c: u32) -> mat4x4<f32> {
    let last = p.N - 1u;
    return mat4x4<f32>(
        input4(min(row, last), c),
        input4(min(row + WG, last), c),
        input4(min(row + 2u * WG, last), c),
        input4(min(row + 3u * WG, last), c),
    );
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let across = (p.outer + 15u) / 16u;
    let tile = group_index(group, groups);
    let first = tile / across * 8u * WG;
    if (first >= p.N) {
        return;
    }
    let row = first + lane;
    let col = tile % across * 16u;
    var sums: array<array<mat4x4<f32>, 4>, 2>;
    for (var i = 0u; ACC && i < 8u; i++) {
        for (var j = 0u; j < 16u; j++) {
            sums[i / 4u][j / 4u][i % 4u][j % 4u] = begin(row + i * WG, col + j);
        }
    }
    var s00 = sums[0][0];
    var s01 = sums[0][1];
    var s02 = sums[0][2];
    var s03 = sums[0][3];
    var s10 = sums[1][0];
    var s11 = sums[1][1];
    var s12 = sums[1][2];
    var s13 = sums[1][3];
    for (var c = 0u; c < p.inner; c += 4u) {
        let x0 = inputs(row, c);
        let x1 = inputs(row + 4u * WG, c);
        let w0 = weights(c, col);
        let w1 = weights(c, col + 4u);
        let w2 = weights(c, col + 8u);
        let w3 = weights(c, col + 12u);
        s00 += w0 * x0;
        s01 += w1 * x0;
        s02 += w2 * x0;
        s03 += w3 * x0;
        s10 += w0 * x1;
        s11 += w1 * x1;
        s12 += w2 * x1;
        s13 += w3 * x1;
    }
    sums = array<array<mat4x4<f32>, 4>, 2>(
        array<mat4x4<f32>, 4>(s00, s01, s02, s03),
        array<mat4x4<f32>, 4>(s10, s11, s12, s13),
    );
    for (var i = 0u; i < 8u; i++) {
        for (var j = 0u; j < 16u; j++) {
            put(row + i * WG, col + j, sums[i / 4u][j / 4u][i % 4u][j % 4u]);
        }
    }
}
