// head_sum: sums over HEADS groups of LANES invocations in a fixed tree order; every invocation gets its group's total

var<workgroup> head_sum_partial: array<f32, HEADS * LANES>;

fn head_sum(value: f32, lane: u32) -> f32 {
    head_sum_partial[lane] = value;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half = half / 2u) {
        if (lane % LANES < half) {
            head_sum_partial[lane] += head_sum_partial[lane + half];
        }
        workgroupBarrier();
    }
    let total = head_sum_partial[lane / LANES * LANES];
    workgroupBarrier();  // the next call overwrites the slots
    return total;
}
