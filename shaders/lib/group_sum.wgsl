// group_sum: sum over a workgroup of WG invocations in a fixed tree order; every invocation gets the total

var<workgroup> group_sum_partial: array<f32, WG>;

fn group_sum(value: f32, lane: u32) -> f32 {
    group_sum_partial[lane] = value;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half = half / 2u) {
        if (lane < half) {
            group_sum_partial[lane] += group_sum_partial[lane + half];
        }
        workgroupBarrier();
    }
    let total = group_sum_partial[0];
    workgroupBarrier();  // the next call overwrites slot 0
    return total;
}
