// gemm_nt_tiles: y = x · wᵀ by tiles of 128 rows x 64 columns in workgroup memory, 16 deep; 8 x 4 results an invocation
// Rows of a tile are 5 vec4 apart instead of 4: eight invocations that read neighbouring columns then hit distinct banks.

//!include lib/group_index.wgsl

const PITCH: u32 = 5u;
var<workgroup> tile_x: array<vec4<f32>, 128u * PITCH>;
var<workgroup> tile_w: array<vec4<f32>, 64u * PITCH>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let across = (p.M + 63u) / 64u;
    let tile = group_index(group, groups);
    let row = tile / across * 128u;
    let col = tile % across * 64u;
    if (row >= p.N) {
        return;
    }
    let tx = lane % 16u;
    let ty = lane / 16u;
    let load_row = lane / 4u;
    let load_k = lane % 4u;
    var sum: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let c = col + tx;
        let r = row + ty * 8u + i;
        sum[i] = vec4<f32>(begin(r, c), begin(r, c + 16u), begin(r, c + 32u), begin(r, c + 48u));
    }
    for (var k = 0u; k < p.K; k += 16u) {
        let at = k + 4u * load_k;
        tile_x[load_row * PITCH + load_k] = input4(row + load_row, at);
        tile_x[(load_row + 64u) * PITCH + load_k] = input4(row + load_row + 64u, at);
        tile_w[load_row * PITCH + load_k] = weight4(col + load_row, at);
        workgroupBarrier();
        for (var step = 0u; step < 4u; step++) {
            let block = mat4x4<f32>(
                tile_w[tx * PITCH + step],
                tile_w[(tx + 16u) * PITCH + step],
                tile_w[(tx + 32u) * PITCH + step],
                tile_w[(tx + 48u) * PITCH + step],
            );
            for (var i = 0u; i < 8u; i++) {
                sum[i] += tile_x[(ty * 8u + i) * PITCH + step] * block;
            }
        }
        workgroupBarrier();  // the next tiles overwrite these
    }
    for (var i = 0u; i < 8u; i++) {
        for (var c = 0u; c < 4u; c++) {
            put(row + ty * 8u + i, col + tx + 16u * c, sum[i][c]);
        }
    }
}
