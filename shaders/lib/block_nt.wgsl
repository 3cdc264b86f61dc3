// block_nt: the weights between contraction indices c .. c + 4 and results col .. col + 4 of y = x · wᵀ
// One vector a contraction index; results past the end repeat the last one and are not stored.

fn weights(c: u32, col: u32) -> mat4x4<f32> {
    let last = p.M - 1u;
    return transpose(mat4x4<f32>(
        weight4(min(col, last), c),
        weight4(min(col + 1u, last), c),
        weight4(min(col + 2u, last), c),
        weight4(min(col + 3u, last), c),
    ));
}
