// input_t: input4(row, c) = x[c .. c + 4, row] of [M, N] times input_factor(row): rows of a transposed input; zero from c = M on

fn input4(row: u32, c: u32) -> vec4<f32> {
    let last = p.inner - 1u;
    let v = vec4<f32>(
        x[c * p.N + row],
        x[min(c + 1u, last) * p.N + row],
        x[min(c + 2u, last) * p.N + row],
        x[min(c + 3u, last) * p.N + row],
    );
    let inside = vec4<u32>(c) + vec4<u32>(0u, 1u, 2u, 3u) <= vec4<u32>(last);
    return select(vec4<f32>(), v * input_factor(row), inside);
}
