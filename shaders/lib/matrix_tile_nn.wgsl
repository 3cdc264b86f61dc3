// matrix_tile_nn: the weights' tile of y = x · w for matrix units: 32 contraction indices, 128 columns of results each

const WEIGHT_PITCH: u32 = 34u;  // vec4s: 32, and 2 against bank conflicts
var<workgroup> tile_w: array<vec4<f16>, 32u * WEIGHT_PITCH>;

fn weight_at(col: u32, step: u32) -> u32 {
    return step * WEIGHT_PITCH + col / 4u;
}

fn weight_matrix(at: u32) -> coop_mat16x16<f16, B> {
    let pitch = WEIGHT_PITCH;
    return coopLoadT<coop_mat16x16<f16, B>>(&tile_w[at], pitch);
}
