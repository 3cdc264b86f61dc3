// gdn_conv: which run of tokens and channel an invocation has, and the sliding window of the taps

struct Run {
    inside: bool,
    channel: u32,
    first: u32,  // first token, inside the window
    base: u32,   // element of the window's first row, in this channel
}

fn conv_run(id: u32, lane: u32) -> Run {
    let blocks = (p.C + WG - 1u) / WG;
    let runs = (p.T + RUN - 1u) / RUN;
    let channel = (id % blocks) * WG + lane;
    let window = id / blocks / runs;
    let inside = channel < p.C && window * p.T < p.N;
    return Run(inside, channel, (id / blocks % runs) * RUN, window * p.T * p.C + channel);
}

fn conv_next(seen: ptr<function, array<f32, TAPS>>, taps: ptr<function, array<f32, TAPS>>, x_t: f32) -> f32 {
    for (var j = 0u; j + 1u < TAPS; j++) {
        (*seen)[j] = (*seen)[j + 1u];
    }
    (*seen)[TAPS - 1u] = x_t;
    var sum = 0.0;
    for (var j = 0u; j < TAPS; j++) {
        sum += (*seen)[j] * (*taps)[j];
    }
    return sum;
}
