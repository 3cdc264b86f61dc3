// attention_tiles: register tiles of the attention kernels for GPUs, 4 x 4 scores or 16 rows x 4 dims an invocation
// Slices of 4 vec4 a row lie in workgroup memory as [4, rows], the slot xor twice the vec4's place: conflict-free both ways.
// Every index of the tile is checked, constant ones at compile time: so many dimensions keep checks out of the loops.

const ROW: u32 = D / 4u;  // vec4 of a head
const STEP: u32 = 4u;  // of them in a slice
const LOW: f32 = -1e30;  // score of a masked pair

// Four regions of 16 rows of 16 vec4: slices, then the weights of a block.
var<workgroup> tile: array<array<array<array<vec4<f32>, 4>, 4>, 16>, 4>;

// Sixteen rows of four dims.
struct Sums {
    a: mat4x4<f32>,
    b: mat4x4<f32>,
    c: mat4x4<f32>,
    d: mat4x4<f32>,
}

// Row in slot `slot` of a slice of 4 * `across` rows: an invocation's four neighbouring rows lie `across` apart.
fn slot_row(slot: u32, across: u32) -> u32 {
    return 4u * (slot % across) + slot / across;
}

fn put_slice(region: u32, rows: u32, slot: u32, c: u32, x: vec4<f32>) {
    let at = rows * c + (slot ^ (2u * c));
    tile[region][at / 16u][at / 4u % 4u][at % 4u] = x;
}

// Four rows of a slice of 64.
fn rows_of_64(region: u32, c: u32, slot: u32) -> mat4x4<f32> {
    let i = (slot / 4u) ^ (c / 2u);
    let j = (slot ^ (2u * c)) % 4u;
    return mat4x4<f32>(
        tile[region][4u * c][i][j],
        tile[region][4u * c + 1u][i][j],
        tile[region][4u * c + 2u][i][j],
        tile[region][4u * c + 3u][i][j],
    );
}

// Four rows of a slice of 32.
fn rows_of_32(region: u32, c: u32, slot: u32) -> mat4x4<f32> {
    let i = (slot / 4u) ^ (c / 2u);
    let j = (slot ^ (2u * c)) % 4u;
    return mat4x4<f32>(
        tile[region][2u * c][i][j],
        tile[region][2u * c][i + 2u][j],
        tile[region][2u * c + 1u][i][j],
        tile[region][2u * c + 1u][i + 2u][j],
    );
}

fn add_products(sum: vec4<f32>, x: vec4<f32>, y: mat4x4<f32>) -> vec4<f32> {
    let two = fma(vec4<f32>(x.y), y[1], fma(vec4<f32>(x.x), y[0], sum));
    return fma(vec4<f32>(x.w), y[3], fma(vec4<f32>(x.z), y[2], two));
}

// scores[i][j] + dot(x[i], y[j])
fn add_dots(scores: mat4x4<f32>, x: mat4x4<f32>, y: mat4x4<f32>) -> mat4x4<f32> {
    let across = transpose(y);
    return mat4x4<f32>(
        add_products(scores[0], x[0], across),
        add_products(scores[1], x[1], across),
        add_products(scores[2], x[2], across),
        add_products(scores[3], x[3], across),
    );
}

fn add_outer(sum: mat4x4<f32>, weight: vec4<f32>, x: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        fma(vec4<f32>(weight.x), x, sum[0]),
        fma(vec4<f32>(weight.y), x, sum[1]),
        fma(vec4<f32>(weight.z), x, sum[2]),
        fma(vec4<f32>(weight.w), x, sum[3]),
    );
}

// Adds x to the sixteen rows, weighted by four vec4 of the tile.
fn add_weighted(sums: Sums, region: u32, row: u32, four: u32, x: vec4<f32>) -> Sums {
    return Sums(
        add_outer(sums.a, tile[region][row][four][0], x),
        add_outer(sums.b, tile[region][row][four][1], x),
        add_outer(sums.c, tile[region][row][four][2], x),
        add_outer(sums.d, tile[region][row][four][3], x),
    );
}
