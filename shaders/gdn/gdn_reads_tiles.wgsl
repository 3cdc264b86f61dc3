// gdn_reads_tiles: kind 0: decayed state · x (to dq, x = dout), 1: -decayed state · x (to dk, x = dv),
//                  2: dstate · what token t adds to the chunk's last state (to dk, x = gap); 128 rows of a state per workgroup
// bind 0  in     x       f32[N, Hv, Dv]
// bind 1  in     rates   f32[N, Hv, 4]
// bind 2  in     states  f32[G, NC, Dk, Dv]  dstates for kind 2
// bind 3  inout  reads   f32[N, Hv, 3, Dk]   this kind and this group's scans
// const   DK, DV  head dims, DV a multiple of 16; L tokens per chunk: 32
// grid    G * NC * cdiv(DK, 128)
// numerics  f32, sums in a fixed order
// see     gdn_reads.wgsl, lib/gdn_tiles.wgsl

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> rates: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> states: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> reads: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/gdn_tiles.wgsl

const ROWS = DK / 4u;  // in fours
const COLS = DV / 4u;

fn factor(rate: vec4<f32>) -> f32 {
    if (p.kind == 2u) {
        return rate.x * rate.z;
    }
    return select(rate.y, -rate.y, p.kind == 1u);
}

// Four columns of four rows of a state, a row in each component.
fn state(at: u32, inside: bool) -> mat4x4<f32> {
    if (!inside) {
        return mat4x4<f32>();
    }
    return transpose(mat4x4<f32>(states[at], states[at + COLS], states[at + 2u * COLS], states[at + 3u * COLS]));
}

fn put(head: u32, t: u32, last: u32, i: u32, sum: vec4<f32>) {
    if (t <= last && i < ROWS) {
        reads[((head + t * p.Hv) * 3u + p.kind) * ROWS + i] = sum;
    }
}

fn put4(head: u32, t: u32, last: u32, i: u32, sums: mat4x4<f32>) {
    put(head, t, last, i, sums[0]);
    put(head, t + 1u, last, i, sums[1]);
    put(head, t + 2u, last, i, sums[2]);
    put(head, t + 3u, last, i, sums[3]);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let across = (DK + WIDTH - 1u) / WIDTH;
    let id = group_index(group, groups);
    let chunk = id / across;
    let first = (id % across) * (WIDTH / 4u);
    if (chunk >= p.G * p.NC) {
        return;
    }
    let scan = p.scan0 + chunk / p.NC;
    let c = chunk % p.NC;
    let head = ((scan / p.Hv) * p.T + c * L) * p.Hv + scan % p.Hv;
    let last = min(L, p.T - c * L) - 1u;
    // the four lanes of a row load 16 neighbouring columns of it
    let load_head = head + min(lane / 4u, last) * p.Hv;
    let load_row = first + lane / 4u;
    let load_x = load_head * COLS + lane % 4u;
    let load_state = (chunk * DK + 4u * load_row) * COLS + lane % 4u;
    let inside = load_row < ROWS;
    let scale = factor(rates[load_head]);
    var sums = Sums();
    var next_x = scale * x[load_x];
    var next_state = state(load_state, inside);
    for (var j = 0u; j < COLS; j += DEPTH / 4u) {
        put_inputs(lane, next_x);
        put_weights(lane % 4u, lane / 4u, next_state);
        workgroupBarrier();
        let next = j + DEPTH / 4u;
        if (next < COLS) {
            next_x = scale * x[load_x + next];
            next_state = state(load_state + next, inside);
        }
        sums = plus_tiles(sums, lane);
        workgroupBarrier();  // the next tiles overwrite these
    }
    let t = lane / 32u * 8u;
    let i = first + lane % 32u;
    put4(head, t, last, i, sums.top);
    put4(head, t + 4u, last, i, sums.bottom);
}
