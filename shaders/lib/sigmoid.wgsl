// sigmoid: logistic function, silu and their derivatives; no exp overflows; a PIECE is f32 or vec4<f32>

fn sigmoid(x: PIECE) -> PIECE {
    let e = exp(-abs(x));
    return select(e, PIECE(1.0), x >= PIECE(0.0)) / (1.0 + e);
}

fn dsigmoid(x: PIECE) -> PIECE {
    let e = exp(-abs(x));
    return e / ((1.0 + e) * (1.0 + e));
}

fn silu(x: PIECE) -> PIECE {
    return x * sigmoid(x);
}

fn dsilu(x: PIECE) -> PIECE {
    return sigmoid(x) + x * dsigmoid(x);
}
