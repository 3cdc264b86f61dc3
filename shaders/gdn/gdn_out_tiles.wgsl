// gdn_out_tiles: o_t = (decayed chunk-start state)ᵀ q_t + sum over s <= t of pairs q·k delta_s; 128 columns of a chunk per
//                workgroup
// bind 0  in     q       f32[N, Hk, Dk]
// bind 1  in     rates   f32[N, Hv, 4]
// bind 2  in     pairs   f32[N, Hv, 2, L]
// bind 3  in     gap     f32[N, Hv, Dv]
// bind 4  in     states  f32[G, NC, Dk, Dv]
// bind 5  inout  o       f32[N, Hv, Dv]      rows of this group's scans
// const   DK, DV  head dims, DK a multiple of 16; L tokens per chunk: 32
// grid    G * NC * cdiv(DV, 128)
// numerics  f32
// see     gdn_out.wgsl, lib/gdn_tiles.wgsl

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> rates: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> pairs: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> gap: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> states: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> o: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/gdn_tiles.wgsl

const COLS = DV / 4u;  // in fours

fn delta(head: u32, s: u32, last: u32, col: u32) -> vec4<f32> {
    if (s > last) {
        return vec4<f32>();
    }
    let at = head + s * p.Hv;
    return rates[at].x * gap[at * COLS + col];
}

// Four rows from k on of the state, and behind its DK rows of the deltas.
fn rows4(chunk: u32, head: u32, k: u32, last: u32, col: u32) -> mat4x4<f32> {
    if (col >= COLS) {
        return mat4x4<f32>();
    }
    if (k < DK) {
        let at = (chunk * DK + k) * COLS + col;
        return mat4x4<f32>(states[at], states[at + COLS], states[at + 2u * COLS], states[at + 3u * COLS]);
    }
    let s = k - DK;
    return mat4x4<f32>(
        delta(head, s, last, col),
        delta(head, s + 1u, last, col),
        delta(head, s + 2u, last, col),
        delta(head, s + 3u, last, col),
    );
}

fn put(head: u32, t: u32, last: u32, col: u32, sum: vec4<f32>) {
    if (t <= last && col < COLS) {
        o[(head + t * p.Hv) * COLS + col] = sum;
    }
}

fn put4(head: u32, t: u32, last: u32, col: u32, sums: mat4x4<f32>) {
    put(head, t, last, col, sums[0]);
    put(head, t + 1u, last, col, sums[1]);
    put(head, t + 2u, last, col, sums[2]);
    put(head, t + 3u, last, col, sums[3]);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let across = (DV + WIDTH - 1u) / WIDTH;
    let id = group_index(group, groups);
    let chunk = id / across;
    let col = (id % across) * (WIDTH / 4u) + lane % 32u;
    if (chunk >= p.G * p.NC) {
        return;
    }
    let scan = p.scan0 + chunk / p.NC;
    let c = chunk % p.NC;
    let h = scan % p.Hv;
    let n0 = (scan / p.Hv) * p.T + c * L;
    let head = n0 * p.Hv + h;
    let last = min(L, p.T - c * L) - 1u;
    // the four lanes of a row load 16 neighbouring elements of it: of q and, as if behind it, of pairs
    let load_t = min(lane / 4u, last);
    let load_head = head + load_t * p.Hv;
    let load_q = ((n0 + load_t) * p.Hk + h / (p.Hv / p.Hk)) * (DK / 4u) + lane % 4u;
    let load_pairs = (load_head * 2u + 1u) * (L / 4u) + lane % 4u;
    let load_k = lane / 32u * 4u;
    let decay = rates[load_head].y;
    var sums = Sums();
    var next_x = decay * q[load_q];
    var next_rows = rows4(chunk, head, load_k, last, col);
    for (var k = 0u; k < DK + L; k += DEPTH) {
        put_inputs(lane, next_x);
        put_weights(lane / 32u, lane % 32u, next_rows);
        workgroupBarrier();
        let next = k + DEPTH;
        if (next < DK) {
            next_x = decay * q[load_q + next / 4u];
        } else if (next < DK + L) {
            next_x = pairs[load_pairs + (next - DK) / 4u];
        }
        if (next < DK + L) {
            next_rows = rows4(chunk, head, next + load_k, last, col);
        }
        sums = plus_tiles(sums, lane);
        workgroupBarrier();  // the next tiles overwrite these
    }
    let t = lane / 32u * 8u;
    put4(head, t, last, col, sums.top);
    put4(head, t + 4u, last, col, sums.bottom);
}
