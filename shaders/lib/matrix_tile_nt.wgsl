// matrix_tile_nt: the weights' tile of y = x · wᵀ for matrix units: 128 rows of results, 32 contraction indices each

const WEIGHT_PITCH: u32 = 10u;  // vec4s: 8, and 2 against bank conflicts
var<workgroup> tile_w: array<vec4<f16>, 128u * WEIGHT_PITCH>;

fn weight_at(col: u32, step: u32) -> u32 {
    return col * WEIGHT_PITCH + step / 4u;
}

fn weight_matrix(at: u32) -> coop_mat16x16<f16, B> {
    let pitch = WEIGHT_PITCH;
    return coopLoad<coop_mat16x16<f16, B>>(&tile_w[at], pitch);
}
