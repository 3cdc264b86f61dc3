// gemm_nt_registers: y = x · wᵀ with ROWS x 4·COLS results in the registers of one invocation; for CPU adapters
// Adjacent invocations take adjacent columns.

//!include lib/group_index.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let across = (p.M + 4u * COLS - 1u) / (4u * COLS);
    let tile = group_index(group, groups) * WG + lane;
    let row = tile / across * ROWS;
    let col = tile % across * 4u * COLS;
    if (row >= p.N) {
        return;
    }
    var sum: array<array<vec4<f32>, COLS>, ROWS>;
    for (var i = 0u; i < ROWS; i++) {
        for (var j = 0u; j < COLS; j++) {
            let c = col + 4u * j;
            let r = row + i;
            sum[i][j] = vec4<f32>(begin(r, c), begin(r, c + 1u), begin(r, c + 2u), begin(r, c + 3u));
        }
    }
    for (var k = 0u; k < p.K; k += 4u) {
        var block: array<mat4x4<f32>, COLS>;
        for (var j = 0u; j < COLS; j++) {
            let m = col + 4u * j;
            block[j] = mat4x4<f32>(weight4(m, k), weight4(m + 1u, k), weight4(m + 2u, k), weight4(m + 3u, k));
        }
        for (var i = 0u; i < ROWS; i++) {
            let v = input4(row + i, k);
            for (var j = 0u; j < COLS; j++) {
                sum[i][j] += v * block[j];
            }
        }
    }
    for (var i = 0u; i < ROWS; i++) {
        for (var j = 0u; j < COLS; j++) {
            for (var c = 0u; c < 4u; c++) {
                put(row + i, col + 4u * j + c, sum[i][j][c]);
            }
        }
    }
}
