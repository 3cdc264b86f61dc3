// sign_guard: a loss that is not finite stops the step's sign updates
// bind 0  in     loss   f32[N]
// bind 1  inout  tally  u32[T]
// const   WG  invocations
// grid    1

@group(0) @binding(0) var<storage, read> loss: array<f32>;
@group(0) @binding(1) var<storage, read_write> tally: array<atomic<u32>>;
@group(0) @binding(2) var<uniform> p: Params;

//!include lib/sign_hyper.wgsl
//!include lib/finite.wgsl

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var row = lane; row < p.N; row += WG) {
        if (!is_finite(loss[row])) {
            atomicStore(&tally[STOP], 1u);
        }
    }
}
