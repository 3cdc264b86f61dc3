// gdn_rows: a column's 128 state rows over 8 neighbouring lanes; lane j of them holds rows 32 i + 4 j to 32 i + 4 j + 3, i < 4
// Subgroups of 8 or more lanes in the order of the workgroup, which has 128. Named members instead of arrays stay in registers.
// Tiles are fetched into registers while the one before is worked on.

struct Quad {  // of four rows, or of four tokens
    x: COL,
    y: COL,
    z: COL,
    w: COL,
}

struct Rows {
    a: Quad,
    b: Quad,
    c: Quad,
    d: Quad,
}

var<workgroup> tile: array<array<array<vec4<f32>, 8>, 4>, 16>;  // rows of 16 tokens: token, i, j

struct Fetched {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

// where this lane's part of a token's q or k is; of the window's last one behind it
fn row_of(b: u32, token: u32, kh: u32, lane: u32) -> u32 {
    return ((b * p.T + min(token, p.T - 1u)) * p.Hk + kh) * 32u + lane % 32u;
}

// keys of 16 tokens
fn fetched_keys(b: u32, first: u32, kh: u32, lane: u32) -> Fetched {
    let token = first + lane / 32u;
    return Fetched(
        k[row_of(b, token, kh, lane)],
        k[row_of(b, token + 4u, kh, lane)],
        k[row_of(b, token + 8u, kh, lane)],
        k[row_of(b, token + 12u, kh, lane)],
    );
}

fn fill_tile(f: Fetched, lane: u32) {
    let token = lane / 32u;
    let i = lane / 8u % 4u;
    tile[token][i][lane % 8u] = f.a;
    tile[token + 4u][i][lane % 8u] = f.b;
    tile[token + 8u][i][lane % 8u] = f.c;
    tile[token + 12u][i][lane % 8u] = f.d;
}

fn quad_scaled(s: Quad, f: vec4<f32>) -> Quad {
    return Quad(s.x * f.x, s.y * f.y, s.z * f.z, s.w * f.w);
}

fn quad_sum(s: Quad, t: Quad) -> Quad {
    return Quad(s.x + t.x, s.y + t.y, s.z + t.z, s.w + t.w);
}

fn quad_select(s: Quad, t: Quad, second: bool) -> Quad {
    return Quad(
        select(s.x, t.x, second),
        select(s.y, t.y, second),
        select(s.z, t.z, second),
        select(s.w, t.w, second),
    );
}

// sum + f · s
fn quad_dot(sum: COL, f: vec4<f32>, s: Quad) -> COL {
    return sum + f.x * s.x + f.y * s.y + f.z * s.z + f.w * s.w;
}

// s + the columns f0 to f3, d.x to d.w times
fn quad_grown(s: Quad, f0: vec4<f32>, f1: vec4<f32>, f2: vec4<f32>, f3: vec4<f32>, d: Quad) -> Quad {
    return Quad(
        s.x + f0.x * d.x + f1.x * d.y + f2.x * d.z + f3.x * d.w,
        s.y + f0.y * d.x + f1.y * d.y + f2.y * d.z + f3.y * d.w,
        s.z + f0.z * d.x + f1.z * d.y + f2.z * d.z + f3.z * d.w,
        s.w + f0.w * d.x + f1.w * d.y + f2.w * d.z + f3.w * d.w,
    );
}

fn quad_from(s: Quad, source: u32) -> Quad {
    return Quad(
        subgroupShuffle(s.x, source),
        subgroupShuffle(s.y, source),
        subgroupShuffle(s.z, source),
        subgroupShuffle(s.w, source),
    );
}

fn quad_across(s: Quad, mask: u32) -> Quad {
    return Quad(
        subgroupShuffleXor(s.x, mask),
        subgroupShuffleXor(s.y, mask),
        subgroupShuffleXor(s.z, mask),
        subgroupShuffleXor(s.w, mask),
    );
}

// sums over a lane and its neighbour: of `s` in the lane without the bit `mask`, of `t` in the other one
fn quad_halved(s: Quad, t: Quad, j: u32, mask: u32) -> Quad {
    let upper = (j & mask) != 0u;
    return quad_sum(quad_select(s, t, upper), quad_across(quad_select(t, s, upper), mask));
}

fn rows_scaled(s: Rows, f: f32) -> Rows {
    let all = vec4<f32>(f);
    return Rows(quad_scaled(s.a, all), quad_scaled(s.b, all), quad_scaled(s.c, all), quad_scaled(s.d, all));
}

// this lane's part of stateᵀ times a token of the tile
fn rows_dot(s: Rows, token: u32, j: u32) -> COL {
    var sum = quad_dot(COL(0.0), tile[token][0][j], s.a);
    sum = quad_dot(sum, tile[token][1][j], s.b);
    sum = quad_dot(sum, tile[token][2][j], s.c);
    return quad_dot(sum, tile[token][3][j], s.d);
}

fn rows_dots(s: Rows, token: u32, j: u32) -> Quad {
    return Quad(
        rows_dot(s, token, j),
        rows_dot(s, token + 1u, j),
        rows_dot(s, token + 2u, j),
        rows_dot(s, token + 3u, j),
    );
}

// stateᵀ times the tile's tokens, whole: of tokens 4 (j % 4) to 4 (j % 4) + 3
fn tile_dots(s: Rows, j: u32) -> Quad {
    let low = quad_halved(rows_dots(s, 0u, j), rows_dots(s, 4u, j), j, 1u);
    let high = quad_halved(rows_dots(s, 8u, j), rows_dots(s, 12u, j), j, 1u);
    let sums = quad_halved(low, high, j, 2u);
    return quad_sum(sums, quad_across(sums, 4u));
}

// s + four tokens of the tile, d.x to d.w times
fn rows_grown(s: Rows, token: u32, j: u32, d: Quad) -> Rows {
    let t1 = token + 1u;
    let t2 = token + 2u;
    let t3 = token + 3u;
    return Rows(
        quad_grown(s.a, tile[token][0][j], tile[t1][0][j], tile[t2][0][j], tile[t3][0][j], d),
        quad_grown(s.b, tile[token][1][j], tile[t1][1][j], tile[t2][1][j], tile[t3][1][j], d),
        quad_grown(s.c, tile[token][2][j], tile[t1][2][j], tile[t2][2][j], tile[t3][2][j], d),
        quad_grown(s.d, tile[token][3][j], tile[t1][3][j], tile[t2][3][j], tile[t3][3][j], d),
    );
}
