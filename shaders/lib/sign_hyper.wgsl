// sign_hyper: what a sign step is told in `hyper` f32[12], and where `tally` u32[T] counts

const ETA: u32 = 0u;
const UNSCALE: u32 = 1u;  // 1 / factor of the stored gradients
const B1: u32 = 2u;
const FIRST_CORRECTION: u32 = 3u;  // 1 / (1 - b1^step)
const B2: u32 = 4u;
const SECOND_CORRECTION: u32 = 5u;  // 1 / (1 - b2^step)
const EPS: u32 = 6u;
const CLAMP: u32 = 7u;
const HYST: u32 = 8u;
const SLOPE: u32 = 9u;
const STEP: u32 = 10u;

const STOP: u32 = 0u;  // not 0: nothing more is written in this step
const NON_FINITE: u32 = 1u;  // sign gradients
const SATURATED: u32 = 2u;
const CLAMPED: u32 = 3u;
const STEPPED: u32 = 4u;  // matrices
const FLIPS: u32 = 5u;  // and from here on one a slot
