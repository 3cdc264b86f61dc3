// lane_rows: a workgroup as ROWS rows of COLS lanes, and the sum over its rows in row order; a PIECE is f32 or vec4<f32>

var<workgroup> lane_rows_partial: array<PIECE, COLS * ROWS>;

// the sum of the lane's column of lanes, for the first COLS lanes; every invocation must call it
fn lane_rows_sum(value: PIECE, lane: u32) -> PIECE {
    if (ROWS == 1u) {
        return value;
    }
    lane_rows_partial[lane] = value;
    workgroupBarrier();
    var sum = lane_rows_partial[lane % COLS];
    if (lane < COLS) {
        for (var row = 1u; row < ROWS; row++) {
            sum += lane_rows_partial[row * COLS + lane];
        }
    }
    return sum;
}
