// block_nn: the weights between contraction indices c .. c + 4 and results col .. col + 4 of y = x · w
// One vector a contraction index; those past the end repeat the last one and meet zeros, or are not stored.

fn weights(c: u32, col: u32) -> mat4x4<f32> {
    let last = p.M - 1u;
    let k = min(col, (p.K - 1u) / 4u * 4u);
    return mat4x4<f32>(
        weight4(min(c, last), k),
        weight4(min(c + 1u, last), k),
        weight4(min(c + 2u, last), k),
        weight4(min(c + 3u, last), k),
    );
}
