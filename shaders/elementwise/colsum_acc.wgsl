// colsum_acc: y += column sums of partial; a workgroup takes COLS pieces of columns, its ROWS rows of lanes share the rows
// bind 0  in     partial  f32[P, C]
// bind 1  inout  y        f32[C]
// alias   PIECE  vec4<f32>, or f32 where C is no multiple of 4
// const   W  elements of a PIECE; COLS, ROWS  lanes of a workgroup
// grid    cdiv(C, W * COLS)
// numerics  every ROWS-th row in order, then these sums in order

@group(0) @binding(0) var<storage, read> partial: array<PIECE>;
@group(0) @binding(1) var<storage, read_write> y: array<PIECE>;
@group(0) @binding(2) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/lane_rows.wgsl

@compute @workgroup_size(COLS * ROWS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let width = p.C / W;
    let c = group_index(group, groups) * COLS + lane % COLS;
    var sum = PIECE(0.0);
    if (c < width) {
        for (var row = lane / COLS; row < p.P; row += ROWS) {
            sum += partial[row * width + c];
        }
    }
    sum = lane_rows_sum(sum, lane);
    if (lane < COLS && c < width) {
        y[c] += sum;
    }
}
