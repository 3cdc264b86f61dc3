// colsum_mul_partial: sums of a·b over row chunks, column by column
// bind 0  in   a        f32[N, C]
// bind 1  in   b        f32[N, C]
// bind 2  out  partial  f32[P, C]
// grid    P x C / WG; a workgroup takes WG columns of one chunk
// numerics  f32 sums in row order

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> partial: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/group_index.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let across = (p.C + WG - 1u) / WG;
    let tile = group_index(group, groups);
    let chunk = tile / across;
    let c = tile % across * WG + lane;
    if (chunk >= p.P || c >= p.C) {
        return;
    }
    var sum = 0.0;
    let end = min((chunk + 1u) * p.rows, p.N);
    for (var n = chunk * p.rows; n < end; n++) {
        sum += a[n * p.C + c] * b[n * p.C + c];
    }
    partial[chunk * p.C + c] = sum;
}
