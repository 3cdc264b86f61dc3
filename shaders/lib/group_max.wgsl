// group_max: maximum over a workgroup of WG invocations; every invocation gets it

var<workgroup> group_max_partial: array<f32, WG>;

fn group_max(value: f32, lane: u32) -> f32 {
    group_max_partial[lane] = value;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half = half / 2u) {
        if (lane < half) {
            group_max_partial[lane] = max(group_max_partial[lane], group_max_partial[lane + half]);
        }
        workgroupBarrier();
    }
    let top = group_max_partial[0];
    workgroupBarrier();  // the next call overwrites slot 0
    return top;
}
