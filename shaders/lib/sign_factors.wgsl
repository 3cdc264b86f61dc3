// sign_factors: the second moment of a sign's gradient from the EMAs `ema` f32[R + C + 3] of the means of q²
// [R, R + C): columns; R + C: mean; R + C + 1 and + 2: the power of two that scaled the first moments, and the one that will.

// sqrt(v̂) + eps·sqrt(mean v̂); 0 where all gradients have been 0
fn root_size(second: f32) -> f32 {
    return sqrt(second) + hyper[EPS] * sqrt(ema[p.R + p.C] * hyper[SECOND_CORRECTION]);
}

fn factored(row: u32, col: u32) -> f32 {
    let mean = ema[p.R + p.C];
    return select(0.0, ema[row] * (ema[p.R + col] / mean) * hyper[SECOND_CORRECTION], mean > 0.0);
}

fn ratio(first: f32, size: f32) -> f32 {
    return select(0.0, first / size, size > 0.0);
}

// The EMA of q, kept as f16 times the matrix's power of two; returned as it is before it is rounded again.
fn next_first(word: u32, q: vec2<f32>) -> vec2<f32> {
    return hyper[B1] * half_values(word) * ema[p.R + p.C + 1u] + (1.0 - hyper[B1]) * q;
}

fn stored_first(first: vec2<f32>) -> u32 {
    let scaled = clamp(first / ema[p.R + p.C + 2u], vec2<f32>(-65504.0), vec2<f32>(65504.0));
    return half_nearest(scaled.x) | (half_nearest(scaled.y) << 16u);
}
