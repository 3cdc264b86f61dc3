// colsum_mul_partial: sums of a·b over row chunks, column by column
// bind 0  in   a        f32[N, C]
// bind 1  in   b        f32[N, C]
// bind 2  out  partial  f32[P, C]
// alias   PIECE  vec4<f32>, or f32 where C is no multiple of 4
// const   W  elements of a PIECE; COLS, ROWS  lanes of a workgroup
// grid    P * cdiv(C, W * COLS); a workgroup takes COLS pieces of columns of one chunk, its ROWS rows of lanes share the rows
// numerics  f32 sums of every ROWS-th row in order, then these sums in order

@group(0) @binding(0) var<storage, read> a: array<PIECE>;
@group(0) @binding(1) var<storage, read> b: array<PIECE>;
@group(0) @binding(2) var<storage, read_write> partial: array<PIECE>;
@group(0) @binding(3) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/lane_rows.wgsl

@compute @workgroup_size(COLS * ROWS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let width = p.C / W;
    let across = (width + COLS - 1u) / COLS;
    let tile = group_index(group, groups);
    let chunk = tile / across;
    if (chunk >= p.P) {
        return;
    }
    let c = tile % across * COLS + lane % COLS;
    var sum = PIECE(0.0);
    if (c < width) {
        let end = min((chunk + 1u) * p.rows, p.N);
        for (var n = chunk * p.rows + lane / COLS; n < end; n += ROWS) {
            sum += a[n * width + c] * b[n * width + c];
        }
    }
    sum = lane_rows_sum(sum, lane);
    if (lane < COLS && c < width) {
        partial[chunk * width + c] = sum;
    }
}
