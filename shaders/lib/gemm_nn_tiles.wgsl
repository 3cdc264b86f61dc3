// gemm_nn_tiles: y = x · w by tiles of 128 rows x 64 columns in workgroup memory, 16 deep; 8 x 4 results an invocation
// Rows of the x tile are 5 vec4 apart instead of 4, which spreads the reads over the banks.

//!include lib/group_index.wgsl

const PITCH: u32 = 5u;
var<workgroup> tile_x: array<vec4<f32>, 128u * PITCH>;
var<workgroup> tile_w: array<vec4<f32>, 16u * 16u>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let across = (p.K + 63u) / 64u;
    let tile = group_index(group, groups);
    let row = tile / across * 128u;
    let col = tile % across * 64u;
    if (row >= p.N) {
        return;
    }
    let tx = lane % 16u;
    let ty = lane / 16u;
    let load_row = lane / 4u;
    let load_m = lane % 4u;
    var sum: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let c = col + 4u * tx;
        let r = row + ty * 8u + i;
        sum[i] = vec4<f32>(begin(r, c), begin(r, c + 1u), begin(r, c + 2u), begin(r, c + 3u));
    }
    for (var m = 0u; m < p.M; m += 16u) {
        let at = m + 4u * load_m;
        tile_x[load_row * PITCH + load_m] = input4(row + load_row, at);
        tile_x[(load_row + 64u) * PITCH + load_m] = input4(row + load_row + 64u, at);
        tile_w[ty * 16u + tx] = weight4(m + ty, col + 4u * tx);
        workgroupBarrier();
        for (var step = 0u; step < 4u; step++) {
            let first = 4u * step * 16u + tx;
            let block = mat4x4<f32>(tile_w[first], tile_w[first + 16u], tile_w[first + 32u], tile_w[first + 48u]);
            for (var i = 0u; i < 8u; i++) {
                sum[i] += block * tile_x[(ty * 8u + i) * PITCH + step];
            }
        }
        workgroupBarrier();  // the next tiles overwrite these
    }
    for (var i = 0u; i < 8u; i++) {
        for (var c = 0u; c < 4u; c++) {
            put(row + ty * 8u + i, col + 4u * tx + c, sum[i][c]);
        }
    }
}
