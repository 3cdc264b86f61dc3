// gdn_states_split: gdn_states for Dk = 128 and chunks of 32; W columns per 8 lanes, which share the state's rows
// bind 0  in     k       f32[N, Hk, Dk]
// bind 1  in     v       f32[N, Hv, Dv]
// bind 2  in     rates   f32[N, Hv, 4]
// bind 3  in     pairs   f32[N, Hv, 2, L]
// bind 4  inout  gap     f32[N, Hv, Dv]      rows of this group's scans
// bind 5  out    states  f32[G, NC, Dk, Dv]  of scans scan0 to scan0 + G - 1, in the order window, value head
// const   DK = 128, DV  head dims; W columns per 8 invocations; L = 32 tokens per chunk; WG = 128 invocations
// alias   COL  f32 or a vector of W columns
// grid    G * cdiv(8 * DV / W, WG)
// numerics  f32; the state is only ever multiplied by decays <= 1
// see     gdn_states.wgsl, lib/gdn_rows.wgsl

@group(0) @binding(0) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> v: array<COL>;
@group(0) @binding(2) var<storage, read> rates: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> pairs: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> gap: array<COL>;
@group(0) @binding(5) var<storage, read_write> states: array<COL>;
@group(0) @binding(6) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/gdn_rows.wgsl

const COLS = DV / W;
const BLOCKS = (8u * COLS + WG - 1u) / WG;

var<workgroup> kk: array<array<array<vec4<f32>, 8>, 4>, 8>;  // s / 4, t % 4, t / 4; the vector over s % 4

fn store_rows(at: u32, s: Quad) {
    states[at] = s.x;
    states[at + COLS] = s.y;
    states[at + 2u * COLS] = s.z;
    states[at + 3u * COLS] = s.w;
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
    var state: Rows;
    var keys = fetched_keys(b, 0u, kh, lane);
    for (var c = 0u; c < p.NC; c++) {
        let n0 = b * p.T + c * L;
        let last = min(L, p.T - c * L) - 1u;  // the chunk's last row
        let more = c + 1u < p.NC;
        if (inside) {
            let at = ((slot * p.NC + c) * DK + 4u * j) * COLS + col;
            store_rows(at, state.a);
            store_rows(at + 32u * COLS, state.b);
            store_rows(at + 64u * COLS, state.c);
            store_rows(at + 96u * COLS, state.d);
        }
        // tokens 4 j to 4 j + 3 are this lane's; those behind the last repeat it and get delta 0
        let t = 4u * j + vec4<u32>(0u, 1u, 2u, 3u);
        let live = t <= vec4<u32>(last);
        let head = (n0 + min(t, vec4<u32>(last))) * p.Hv + h;
        let r0 = rates[head.x];
        let r1 = rates[head.y];
        let r2 = rates[head.z];
        let r3 = rates[head.w];
        let beta = select(vec4<f32>(0.0), vec4<f32>(r0.x, r1.x, r2.x, r3.x), live);
        let to_end = vec4<f32>(r0.z, r1.z, r2.z, r3.z);
        let vrow = head * COLS + col;
        let whole = rates[(n0 + last) * p.Hv + h].y;
        var x = Quad(v[vrow.x], v[vrow.y], v[vrow.z], v[vrow.w]);
        // this lane's share of pairs: rows lane / 8 and 16 behind it
        let row = lane / 8u;
        let pair = (n0 + min(vec2<u32>(row, row + 16u), vec2<u32>(last))) * p.Hv + h;
        let low = pairs[pair.x * (2u * L / 4u) + j];
        let high = pairs[pair.y * (2u * L / 4u) + j];
        // v - decayed stateᵀ k, of all tokens
        var read: Quad;
        for (var half = 0u; half <= last / 16u; half++) {
            workgroupBarrier();
            fill_tile(keys, lane);
            workgroupBarrier();
            keys = fetched_keys(b, c * L + 16u * (1u - half), kh, lane);  // the other half
            read = quad_select(read, tile_dots(state, j), j / 4u == half);
        }
        x = quad_sum(x, quad_scaled(read, -vec4<f32>(r0.y, r1.y, r2.y, r3.y)));
        // delta_t = beta_t gap_t, four tokens at a time; they leave the gaps of the tokens behind and grow the state
        workgroupBarrier();
        kk[j][row % 4u][row / 4u] = low;
        kk[j][row % 4u][row / 4u + 4u] = high;
        if (more) {
            fill_tile(keys, lane);
        }
        workgroupBarrier();
        let m1 = kk[j][1][j];
        let m2 = kk[j][2][j];
        let m3 = kk[j][3][j];
        if (more) {  // only full chunks come here
            state = rows_scaled(state, whole);
        }
        for (var half = 0u; half <= last / 16u; half++) {
            if (more) {
                if (half == 1u) {
                    workgroupBarrier();
                    fill_tile(keys, lane);
                    workgroupBarrier();
                }
                keys = fetched_keys(b, c * L + 16u * (half + 1u), kh, lane);
            }
            for (var i = 0u; i < 4u; i++) {
                let block = 4u * half + i;
                let source = first_lane + block;
                let d0 = beta.x * x.x;
                let d1 = beta.y * (x.y - m1.x * d0);
                let d2 = beta.z * (x.z - m2.x * d0 - m2.y * d1);
                let d3 = beta.w * (x.w - m3.x * d0 - m3.y * d1 - m3.z * d2);
                let delta = quad_from(Quad(d0, d1, d2, d3), source);  // of the lane whose tokens they are
                x.x = quad_dot(x.x, -kk[block][0][j], delta);
                x.y = quad_dot(x.y, -kk[block][1][j], delta);
                x.z = quad_dot(x.z, -kk[block][2][j], delta);
                x.w = quad_dot(x.w, -kk[block][3][j], delta);
                if (more) {
                    let left = subgroupShuffle(to_end, source);
                    state = rows_grown(state, 4u * i, j, quad_scaled(delta, left));
                }
            }
        }
        if (inside && live.x) {
            gap[vrow.x] = x.x;
        }
        if (inside && live.y) {
            gap[vrow.y] = x.y;
        }
        if (inside && live.z) {
            gap[vrow.z] = x.z;
        }
        if (inside && live.w) {
            gap[vrow.w] = x.w;
        }
    }
}
