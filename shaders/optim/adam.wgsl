// adam: w -= lr * update, times max(|w|, floor) where floor > 0; entries whose mask is 0 stay; g is zeroed
// bind 0  inout  w      f32[P]
// bind 1  inout  g      f32[P]
// bind 2  inout  m1     f32[P]
// bind 3  inout  m2     f32[P]
// bind 4  in     mask   f32[P]  0 or 1
// bind 5  in     floor  f32[P]
// bind 6  in     hyper  f32[8]  lr, 1/(1 - b1^t), 1/(1 - b2^t), b1, b2, eps, factor of g, unused
// const   WG  invocations per workgroup
// grid    P / WG

@group(0) @binding(0) var<storage, read_write> w: array<f32>;
@group(0) @binding(1) var<storage, read_write> g: array<f32>;
@group(0) @binding(2) var<storage, read_write> m1: array<f32>;
@group(0) @binding(3) var<storage, read_write> m2: array<f32>;
@group(0) @binding(4) var<storage, read> mask: array<f32>;
@group(0) @binding(5) var<storage, read> floor: array<f32>;
@group(0) @binding(6) var<storage, read> hyper: array<f32>;
@group(0) @binding(7) var<uniform> p: Params;

//!include lib/group_index.wgsl

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if (i >= p.P) {
        return;
    }
    let live = mask[i] != 0.0;
    let grad = select(0.0, g[i] * hyper[6], live);
    g[i] = 0.0;
    let b1 = hyper[3];
    let b2 = hyper[4];
    let first = b1 * m1[i] + (1.0 - b1) * grad;
    let second = b2 * m2[i] + (1.0 - b2) * grad * grad;
    m1[i] = first;
    m2[i] = second;
    let update = first * hyper[1] / (sqrt(second * hyper[2]) + hyper[5]);
    let size = select(1.0, max(abs(w[i]), floor[i]), floor[i] > 0.0);
    if (live) {
        w[i] -= hyper[0] * update * size;
    }
}
