// matrix_units: y = x · wᵀ, [64, 32] times [16, 32], by four subgroups of 32 invocations with 16 rows each
// The device's self-test: a layout that is transposed, or subgroups of another size, give another result.

var<workgroup> tile: array<vec4<f16>, 64u * 10u>;
var<workgroup> results: array<f32, 64u * 20u>;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> p: vec4<u32>;

fn weight_matrix(at: u32, pitch: u32) -> coop_mat16x16<f16, B> {
    return coopLoad<coop_mat16x16<f16, B>>(&w[at], pitch);
}

@compute @workgroup_size(128)
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var i = lane; i < 512u; i += 128u) {
        tile[i / 8u * 10u + i % 8u] = vec4<f16>(x[i]);
    }
    workgroupBarrier();
    var sum = coop_mat16x16<f32, C>();
    let x_pitch = 10u;
    let w_pitch = 8u;
    let y_pitch = 20u;
    for (var step = 0u; step < p.x; step += 16u) {
        let at_x = lane / 32u * 160u + step / 4u;
        let at_w = step / 4u;
        let a = coopLoadT<coop_mat16x16<f16, A>>(&tile[at_x], x_pitch);
        sum = coopMultiplyAdd(a, weight_matrix(at_w, w_pitch), sum);
    }
    let at_y = lane / 32u * 320u;
    coopStoreT(sum, &results[at_y], y_pitch);
    workgroupBarrier();
    for (var i = lane; i < 1024u; i += 128u) {
        y[i] = results[i / 16u * 20u + i % 16u];
    }
}
