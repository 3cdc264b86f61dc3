// sigmoid: logistic function, silu and their derivatives; no exp overflows

fn sigmoid(x: f32) -> f32 {
    let e = exp(-abs(x));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

fn dsigmoid(x: f32) -> f32 {
    let e = exp(-abs(x));
    return e / ((1.0 + e) * (1.0 + e));
}

fn silu(x: f32) -> f32 {
    return x * sigmoid(x);
}

fn dsilu(x: f32) -> f32 {
    return sigmoid(x) + x * dsigmoid(x);
}
