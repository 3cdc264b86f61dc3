// gdn_states_bwd_split: gdn_states_bwd for Dk = 128 and chunks of 32; W columns per 8 lanes, which share the gradient's rows
// bind 0  in     q        f32[N, Hk, Dk]
// bind 1  in     k        f32[N, Hk, Dk]
// bind 2  in     rates    f32[N, Hv, 4]
// bind 3  in     pairs    f32[N, Hv, 2, L]
// bind 4  in     dout     f32[N, Hv, Dv]
// bind 5  inout  ddelta   f32[N, Hv, Dv]      rows of this group's scans
// bind 6  inout  dv       f32[N, Hv, Dv]      beta * ddelta, likewise
// bind 7  out    dstates  f32[G, NC, Dk, Dv]  gradient at the state behind every chunk
// const   DK = 128, DV  head dims; W columns per 8 invocations; L = 32 tokens per chunk; WG = 128 invocations
// alias   COL  f32 or a vector of W columns
// grid    G * cdiv(8 * DV / W, WG)
// numerics  f32
// see     gdn_states_bwd.wgsl, lib/gdn_rows.wgsl

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> rates: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> pairs: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> dout: array<COL>;
@group(0) @binding(5) var<storage, read_write> ddelta: array<COL>;
@group(0) @binding(6) var<storage, read_write> dv: array<COL>;
@group(0) @binding(7) var<storage, read_write> dstates: array<COL>;
@group(0) @binding(8) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/gdn_rows.wgsl

const COLS = DV / W;
const BLOCKS = (8u * COLS + WG - 1u) / WG;

// with the tile 16384 bytes, WebGPU's default limit
var<workgroup> products: array<array<vec4<f32>, 16>, 32>;  // the chunk's pairs: of token t k·k, then q·k

// keys of 8 tokens, then their queries
fn fetched_both(b: u32, first: u32, kh: u32, lane: u32) -> Fetched {
    let row = row_of(b, first + lane / 32u, kh, lane);
    let next = row_of(b, first + lane / 32u + 4u, kh, lane);
    return Fetched(k[row], k[next], q[row], q[next]);
}

fn store_rows(at: u32, s: Quad) {
    dstates[at] = s.x;
    dstates[at + COLS] = s.y;
    dstates[at + 2u * COLS] = s.z;
    dstates[at + 3u * COLS] = s.w;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_invocation_id) place: u32,
) {
    let id = group_index(group, groups);
    let slot = id / BLOCKS;
    if (slot >= p.G) {
        return;
    }
    let b = (p.scan0 + slot) / p.Hv;
    let h = (p.scan0 + slot) % p.Hv;
    let kh = h / (p.Hv / p.Hk);
    let j = lane % 8u;
    let first_lane = place - place % 8u;
    let wanted = (id % BLOCKS) * (WG / 8u) + lane / 8u;
    let inside = wanted < COLS;  // columns behind the last take part, as the last one, and write nothing
    let col = min(wanted, COLS - 1u);
    var dstate: Rows;
    var rows = fetched_keys(b, (p.NC - 1u) * L, kh, lane);
    for (var chunks = p.NC; chunks > 0u; chunks--) {
        let c = chunks - 1u;
        let n0 = b * p.T + c * L;
        let last = min(L, p.T - c * L) - 1u;  // the chunk's last row
        let more = c > 0u;
        if (inside) {
            let at = ((slot * p.NC + c) * DK + 4u * j) * COLS + col;
            store_rows(at, dstate.a);
            store_rows(at + 32u * COLS, dstate.b);
            store_rows(at + 64u * COLS, dstate.c);
            store_rows(at + 96u * COLS, dstate.d);
        }
        // tokens 4 j to 4 j + 3 are this lane's; those behind the last repeat it, with gradients 0
        let t = 4u * j + vec4<u32>(0u, 1u, 2u, 3u);
        let live = t <= vec4<u32>(last);
        let head = (n0 + min(t, vec4<u32>(last))) * p.Hv + h;
        let r0 = rates[head.x];
        let r1 = rates[head.y];
        let r2 = rates[head.z];
        let r3 = rates[head.w];
        let beta = select(vec4<f32>(0.0), vec4<f32>(r0.x, r1.x, r2.x, r3.x), live);
        let into = vec4<f32>(r0.y, r1.y, r2.y, r3.y);
        let at = head * COLS + col;
        let whole = rates[(n0 + last) * p.Hv + h].y;
        let given = Quad(dout[at.x], dout[at.y], dout[at.z], dout[at.w]);
        let gout = quad_scaled(given, select(vec4<f32>(0.0), vec4<f32>(1.0), live));
        // this lane's share of pairs: vector lane % 16 of rows lane / 16 and 8, 16, 24 behind it
        let row = lane / 16u + vec4<u32>(0u, 8u, 16u, 24u);
        let pair = ((n0 + min(row, vec4<u32>(last))) * p.Hv + h) * (2u * L / 4u) + lane % 16u;
        let pair0 = pairs[pair.x];
        let pair1 = pairs[pair.y];
        let pair2 = pairs[pair.z];
        let pair3 = pairs[pair.w];
        // through the state behind the chunk, of all tokens
        var x: Quad;
        for (var half = 0u; half <= last / 16u; half++) {
            workgroupBarrier();
            fill_tile(rows, lane);
            if (half == 0u) {
                products[row.x][lane % 16u] = pair0;
                products[row.y][lane % 16u] = pair1;
                products[row.z][lane % 16u] = pair2;
                products[row.w][lane % 16u] = pair3;
            }
            workgroupBarrier();
            if (half < last / 16u) {
                rows = fetched_keys(b, c * L + 16u, kh, lane);
            } else if (more) {
                rows = fetched_both(b, c * L + last / 8u * 8u, kh, lane);
            }
            x = quad_select(x, tile_dots(dstate, j), j / 4u == half);
        }
        x = quad_scaled(x, vec4<f32>(r0.z, r1.z, r2.z, r3.z));
        // ddelta_t and dgap_t = beta_t ddelta_t, four tokens at a time, last ones first: tokens before read them through
        // q·k (their output) and k·k (their gap), and so does the state before the chunk
        let m1 = products[4u * j + 1u][j];
        let m2 = products[4u * j + 2u][j];
        let m3 = products[4u * j + 3u][j];
        if (more) {
            dstate = rows_scaled(dstate, whole);
        }
        for (var left = last / 8u + 1u; left > 0u; left--) {
            let quarter = left - 1u;
            if (more) {
                workgroupBarrier();
                fill_tile(rows, lane);
                workgroupBarrier();
                if (quarter > 0u) {
                    rows = fetched_both(b, c * L + 8u * quarter - 8u, kh, lane);
                } else {
                    rows = fetched_keys(b, c * L - L, kh, lane);
                }
            }
            for (var i = 0u; i < 2u; i++) {
                let block = 2u * quarter + 1u - i;
                let source = first_lane + block;
                let first = 4u * block;
                let g = quad_from(gout, source);
                let q0 = products[first][8u + j];
                let q1 = products[first + 1u][8u + j];
                let q2 = products[first + 2u][8u + j];
                let q3 = products[first + 3u][8u + j];
                x = quad_grown(x, q0, q1, q2, q3, g);
                let u3 = beta.w * x.w;
                let u2 = beta.z * (x.z - m3.z * u3);
                let u1 = beta.y * (x.y - m3.y * u3 - m2.y * u2);
                let u0 = beta.x * (x.x - m3.x * u3 - m2.x * u2 - m1.x * u1);
                let u = quad_from(Quad(u0, u1, u2, u3), source);  // of the lane whose tokens they are
                let k0 = products[first][j];
                let k1 = products[first + 1u][j];
                let k2 = products[first + 2u][j];
                let k3 = products[first + 3u][j];
                x = quad_grown(x, -k0, -k1, -k2, -k3, u);
                if (more) {
                    let decay = subgroupShuffle(into, source);
                    let token = 4u - 4u * i;
                    dstate = rows_grown(dstate, token, j, quad_scaled(u, -decay));
                    dstate = rows_grown(dstate, token + 8u, j, quad_scaled(g, decay));
                }
            }
        }
        let back = quad_scaled(x, beta);
        if (inside && live.x) {
            ddelta[at.x] = x.x;
            dv[at.x] = back.x;
        }
        if (inside && live.y) {
            ddelta[at.y] = x.y;
            dv[at.y] = back.y;
        }
        if (inside && live.z) {
            ddelta[at.z] = x.z;
            dv[at.z] = back.z;
        }
        if (inside && live.w) {
            ddelta[at.w] = x.w;
            dv[at.w] = back.w;
        }
    }
}
