// sign_moments: the EMAs of the means of q² over rows, over columns and over all; nothing where the step has been stopped
// bind 0  in     rows     f32[R]            means of the rows
// bind 1  in     partial  f32[P, L]         sums of the columns over P chunks of rows
// bind 2  inout  ema      f32[R + C + 3]    rows, columns, mean, power of two of the first moments before and from now on
// bind 3  in     tally    u32[T]
// bind 4  in     hyper    f32[12]
// const   WG  invocations per workgroup, a power of two
// grid    cdiv(R + C, WG), and a workgroup for the mean
// numerics  f32 sums in a fixed order

@group(0) @binding(0) var<storage, read> rows: array<f32>;
@group(0) @binding(1) var<storage, read> partial: array<f32>;
@group(0) @binding(2) var<storage, read_write> ema: array<f32>;
@group(0) @binding(3) var<storage, read> tally: array<u32>;
@group(0) @binding(4) var<storage, read> hyper: array<f32>;
@group(0) @binding(5) var<uniform> p: Params;

//!include lib/group_index.wgsl
//!include lib/group_sum.wgsl
//!include lib/sign_hyper.wgsl

fn next(before: f32, value: f32) -> f32 {
    return hyper[B2] * before + (1.0 - hyper[B2]) * value;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group_index(group, groups);
    let last = (p.R + p.C + WG - 1u) / WG;
    if (index > last || tally[STOP] != 0u) {
        return;
    }
    if (index < last) {
        let i = index * WG + lane;
        if (i < p.R) {
            ema[i] = next(ema[i], rows[i]);
        } else if (i < p.R + p.C) {
            var sum = 0.0;
            for (var chunk = 0u; chunk < p.P; chunk++) {
                sum += partial[chunk * p.L + i - p.R];
            }
            ema[i] = next(ema[i], sum / f32(p.R));
        }
        return;
    }
    var sum = 0.0;
    for (var row = lane; row < p.R; row += WG) {
        sum += rows[row];
    }
    let total = group_sum(sum, lane);
    if (lane == 0u) {
        let at = p.R + p.C;
        let mean = next(ema[at], total / f32(p.R));
        ema[at] = mean;
        ema[at + 1u] = ema[at + 2u];
        // about sqrt(mean): 2 to half of its exponent
        let exponent = (i32(bitcast<u32>(mean) >> 23u) - 127) >> 1u;
        ema[at + 2u] = bitcast<f32>(u32(exponent + 127) << 23u);
    }
}
