"""The PyTorch peer of tools/bench_step.py and tools/bench_ops.py: the same work in straightforward torch.

python tools/peer_torch.py step [--json] [--tiny]    one distillation step of a BLR student, transformers' Qwen3.5
python tools/peer_torch.py ops [--json] [--tiny]     its operations one by one

Prints one JSON object; whatever failed has an "error" in the place of its numbers. Needs torch and transformers with CUDA;
--tiny runs small shapes on the CPU, to test this file: its times mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
import itertools
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOP_K = 64
WARM_UP, TIMED = 3, 10
LR, CLIP = 1e-3, 1.0
BPW = 1.0
DENSE = ("in_proj_a", "in_proj_b")  # the linears of a layer that BLR leaves alone

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = {"bf16": BF16, "f16": F16, "f32": F32}

Numbers = dict[str, Any]
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Shape:
    """The model and the sizes of a step and of its operations."""

    layers: int = 24
    hidden: int = 1024
    intermediate: int = 3584
    vocabulary: int = 248320
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 256
    gdn_heads: int = 16
    gdn_dim: int = 128
    batch: int = 8
    tokens: int = 512
    long_tokens: int = 2048
    head_rows: int = 512  # rows of logits that live at a time
    square: int = 4096
    copy_bytes: int = 1 << 30
    adamw_tensors: int = 160  # of 65536 parameters

    @property
    def rows(self) -> int:
        return self.batch * self.tokens

    def linears(self) -> list[tuple[int, int]]:
        """The distinct (out, in) of the body linears."""
        d, f, v = self.hidden, self.intermediate, self.gdn_heads * self.gdn_dim
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return list(dict.fromkeys([(f, d), (d, f), (2 * q, d), (3 * v, d), (v, d), (d, v), (kv, d), (d, q)]))


FULL = Shape()
TINY = Shape(4, 128, 256, 512, 2, 1, 64, 2, 32, 2, 16, 32, 12, 64, 1 << 16, 2)  # in the order above


def blr_rank(m: int, n: int, bpw: float = BPW) -> int:
    """The rule of nvgpu/encode/rank.py for one path."""
    rank = int((bpw * m * n - 16 * (m + n)) // (m + n + 16)) // 8 * 8
    if rank < 8:
        raise ValueError(f"[{m}, {n}]: {bpw:g} bits per weight buy no rank")
    return rank


def signs(m: int, n: int, device: torch.device) -> Tensor:
    return (torch.randint(0, 2, (m, n), device=device) * 2 - 1).to(BF16)


class BlrLinear(nn.Module):
    """y = ((x·g) Vᵀ·l) Uᵀ·h with frozen ±1 factors as dense bf16; the scales are float32 and train."""

    def __init__(self, m: int, n: int, device: torch.device) -> None:
        super().__init__()
        r = blr_rank(m, n)
        self.register_buffer("U", signs(m, r, device))
        self.register_buffer("V", signs(r, n, device))

        def scale(size: int, mean: float) -> nn.Parameter:
            return nn.Parameter(mean * (0.75 + 0.5 * torch.rand(size, dtype=F32, device=device)))

        # weights of about 0.02, as transformers draws those of a dense linear
        self.h, self.l, self.g = scale(m, 1.0), scale(r, 0.02 / math.sqrt(r)), scale(n, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        h, l, g = (scale.to(x.dtype) for scale in (self.h, self.l, self.g))
        return F.linear(F.linear(x * g, self.V) * l, self.U) * h


def build(shape: Shape, device: torch.device) -> tuple[Any, list[nn.Parameter]]:
    """The student with random weights, ready to train, and its trainable parameters."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm

    config = Qwen3_5TextConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=shape.gdn_dim,
        linear_value_head_dim=shape.gdn_dim,
        linear_num_key_heads=shape.gdn_heads,
        linear_num_value_heads=shape.gdn_heads,
        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * (shape.layers // 4),
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    before = torch.get_default_dtype()
    # not model.to(bf16): that would round the rotary frequencies as well
    torch.set_default_dtype(BF16)
    try:
        with device:
            model = Qwen3_5ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.requires_grad_(False)
    for layer in model.model.layers:
        for block in list(layer.modules()):
            for name, linear in list(block.named_children()):
                if isinstance(linear, nn.Linear) and name not in DENSE:
                    setattr(block, name, BlrLinear(linear.out_features, linear.in_features, device))
    for module in model.modules():
        if isinstance(module, Qwen3_5RMSNorm):
            # bf16 would lose most updates of 1e-3 next to a gain of about 1
            module.weight = nn.Parameter(0.1 * torch.randn_like(module.weight, dtype=F32))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return model, [p for p in model.parameters() if p.requires_grad]


def targets(rows: int, vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random ids [rows, 64], distinct in a row, and probabilities that sum to 1."""
    band = vocabulary // TOP_K
    ids = torch.randint(0, band, (rows, TOP_K), device=device) + band * torch.arange(TOP_K, device=device)
    return ids, torch.softmax(2 * torch.randn(rows, TOP_K, device=device), -1)


def top_k_kl(logits: Tensor, ids: Tensor, p: Tensor) -> Tensor:
    """Σ over rows of KL(p ‖ softmax(logits)) on the teacher's ids; the softmax is over the whole vocabulary."""
    log_q = F.log_softmax(logits, -1, dtype=F32).gather(-1, ids)
    return (p * (p.log() - log_q)).sum()


def head_backward(hidden: Tensor, weight: Tensor, ids: Tensor, p: Tensor, chunk: int) -> Tensor:
    """Mean KL of the rows; runs the whole backward pass, the head's chunk by chunk so that few logits live at a time."""
    loss = torch.zeros((), device=hidden.device)
    grads = []
    for x, i, q in zip(hidden.detach().split(chunk), ids.split(chunk), p.split(chunk), strict=True):
        leaf = x.detach().requires_grad_()
        part = top_k_kl(F.linear(leaf, weight), i, q) / len(hidden)
        grads += torch.autograd.grad(part, [leaf])
        loss += part.detach()
    hidden.backward(torch.cat(grads))
    return loss


def train_step(
    model: Any, optimizer: torch.optim.Optimizer, batch: Inputs, params: Sequence[Tensor], chunk: int
) -> Tensor:
    tokens, ids, p = batch
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state.flatten(0, 1)
    loss = head_backward(hidden, model.lm_head.weight, ids, p, chunk)
    nn.utils.clip_grad_norm_(params, CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def step(tiny: bool = False) -> Numbers:
    """Median seconds of a distillation step."""
    shape, device = (TINY if tiny else FULL), pick(tiny)
    torch.manual_seed(0)
    model, params = build(shape, device)
    optimizer = torch.optim.AdamW(params, lr=LR, fused=True)
    tokens = torch.randint(0, shape.vocabulary, (shape.batch, shape.tokens), device=device)
    batch = (tokens, *targets(shape.rows, shape.vocabulary, device))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds, losses = [], []
    for _ in range(WARM_UP + TIMED):
        synchronize(device)
        began = time.perf_counter()
        loss = train_step(model, optimizer, batch, params, shape.head_rows)
        synchronize(device)
        seconds.append(time.perf_counter() - began)
        losses.append(float(loss))
    median = statistics.median(seconds[WARM_UP:])
    return {
        "seconds": median,
        "seconds_all": seconds[WARM_UP:],
        "tokens_per_s": shape.rows / median,
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "batch": shape.batch,
        "window": shape.tokens,
        "trainable": sum(p.numel() for p in params),
        "attention": model.config._attn_implementation,
        # their presence would make transformers take other kernels than this peer is meant to have
        "fla": installed("fla"),
        "causal_conv1d": installed("causal_conv1d"),
        **versions(device),
    }


def ops(tiny: bool = False) -> Numbers:
    """Every operation by itself; one that fails leaves the others alone."""
    shape, device = (TINY if tiny else FULL), pick(tiny)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    items: dict[str, Numbers] = {}
    for name, measure in catalogue(shape, device):
        items[name] = attempt(measure)
        print(name, items[name], file=sys.stderr, flush=True)
        if device.type == "cuda":
            with contextlib.suppress(Exception):  # the next item will say so if the device is lost
                torch.cuda.empty_cache()
    return {"items": items, **versions(device)}


def catalogue(s: Shape, device: torch.device) -> Iterator[tuple[str, Callable[[], Numbers]]]:
    """Names and measurements; a product is named by its rows and the (out)x(in) of its weight."""
    bind = functools.partial
    yield "copy", bind(copy, s.copy_bytes, device)
    products = [(s.square, s.square, s.square), *((s.rows, m, n) for m, n in s.linears())]
    for rows, m, n in [*products, (s.head_rows, s.vocabulary, s.hidden)]:
        for name, dtype in DTYPES.items():
            for kind in ("y", "dx"):
                yield f"gemm {name} {kind} {rows} {m}x{n}", bind(gemm, kind, dtype, rows, m, n, device)
    for m, n in s.linears():
        for kind in BLR:
            yield f"blr bf16 {kind} {s.rows} {m}x{n}", bind(blr, kind, s.rows, m, n, device)
    for tokens in (s.tokens, s.long_tokens):
        yield f"attention {tokens}", bind(attention, s, tokens, device)
    yield f"gdn {s.tokens}", bind(gdn, s, device)
    yield f"rmsnorm {s.rows}x{s.hidden}", bind(rms_norm, s, device)
    yield f"swiglu {s.rows}x{s.intermediate}", bind(swiglu, s, device)
    yield "adamw", bind(adamw, s.adamw_tensors, device)
    yield f"log-softmax top-{TOP_K} {s.head_rows}x{s.vocabulary}", bind(log_softmax_top_k, s, device)


def copy(size: int, device: torch.device) -> Numbers:
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    ms = median_ms([lambda: target.copy_(source)], device)
    return {"ms": ms, "gb_per_s": 2 * size / ms / 1e6}


def gemm(kind: str, dtype: torch.dtype, rows: int, m: int, n: int, device: torch.device) -> Numbers:
    """y = x Wᵀ or dx = dy W, with W [m, n]."""
    other = n if kind == "y" else m

    def make() -> Inputs:
        return randn(rows, other, dtype=dtype, device=device), randn(m, n, dtype=dtype, device=device)

    ms = median_of(lambda x, w: x @ (w.T if kind == "y" else w), make, device)
    return {"ms": ms, "tflops": 2 * rows * m * n / ms / 1e9}


# the factors alone, their product, its derivative, and the module with its scales
BLR: dict[str, Callable[..., Tensor]] = {
    "V": lambda x, t, dy, u, v, h, l, g: x @ v.T,
    "U": lambda x, t, dy, u, v, h, l, g: t @ u.T,
    "y": lambda x, t, dy, u, v, h, l, g: (x @ v.T) @ u.T,
    "dx": lambda x, t, dy, u, v, h, l, g: (dy @ u) @ v,
    "y scaled": lambda x, t, dy, u, v, h, l, g: ((x * g) @ v.T * l) @ u.T * h,
}


def blr(kind: str, rows: int, m: int, n: int, device: torch.device) -> Numbers:
    """One of BLR; the flops are those of the products as dense ones."""
    r = blr_rank(m, n)

    def make() -> Inputs:
        dense = (randn(rows, size, device=device) for size in (n, r, m))
        return *dense, signs(m, r, device), signs(r, n, device), *(randn(k, device=device) for k in (m, r, n))

    ms = median_of(BLR[kind], make, device)
    width = {"V": n, "U": m}.get(kind, m + n)
    return {"ms": ms, "rank": r, "tflops": 2 * rows * r * width / ms / 1e9}


def attention(s: Shape, tokens: int, device: torch.device) -> Numbers:
    def make() -> Inputs:
        heads = (s.heads, s.kv_heads, s.kv_heads)
        return tuple(randn(s.batch, h, tokens, s.head_dim, device=device) for h in heads)

    return both_ways(
        functools.partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True), make, device
    )


def gdn(s: Shape, device: torch.device) -> Numbers:
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    def make() -> Inputs:
        rows = (s.batch, s.tokens, s.gdn_heads)
        decay = -F.softplus(torch.randn(rows, device=device))  # float32, as the layer makes it
        return *(randn(*rows, s.gdn_dim, device=device) for _ in "qkv"), decay, randn(*rows, device=device)

    def f(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, b: Tensor) -> Tensor:
        return torch_chunk_gated_delta_rule(q, k, v, g=decay, beta=b.sigmoid(), use_qk_l2norm_in_kernel=True)[
            0
        ]

    return both_ways(f, make, device)


def rms_norm(s: Shape, device: torch.device) -> Numbers:
    def make() -> Inputs:
        return randn(s.rows, s.hidden, device=device), randn(s.hidden, device=device)

    return both_ways(lambda x, gain: F.rms_norm(x, gain.shape, gain, 1e-6), make, device)


def swiglu(s: Shape, device: torch.device) -> Numbers:
    def make() -> Inputs:
        return tuple(randn(s.rows, s.intermediate, device=device) for _ in range(2))

    return both_ways(lambda gate, up: F.silu(gate) * up, make, device)


def adamw(tensors: int, device: torch.device) -> Numbers:
    """Float32 parameters in many tensors, as scale vectors are."""
    params = [nn.Parameter(torch.randn(1 << 16, device=device)) for _ in range(tensors)]
    for p in params:
        p.grad = torch.randn_like(p)
    ms = median_ms([torch.optim.AdamW(params, lr=LR, fused=True).step], device)
    return {"ms": ms, "parameters": tensors << 16}


def log_softmax_top_k(s: Shape, device: torch.device) -> Numbers:
    """Of bf16 logits, in float32."""

    def make() -> Inputs:
        return (randn(s.head_rows, s.vocabulary, device=device),)

    ms = median_of(lambda logits: F.log_softmax(logits, -1, dtype=F32).topk(TOP_K), make, device)
    return {"ms": ms}


def randn(*size: int, dtype: torch.dtype = BF16, device: torch.device) -> Tensor:
    return torch.randn(size, dtype=dtype, device=device)


def both_ways(f: Callable[..., Tensor], make: Callable[[], Inputs], device: torch.device) -> Numbers:
    """Milliseconds of f without a graph, and of f and its derivative by every input."""
    sets = input_sets(make, device)
    with torch.no_grad():
        forward = median_ms([functools.partial(f, *inputs) for inputs in sets], device)
        out_grads = [torch.randn_like(f(*inputs)) for inputs in sets]

    def run(inputs: Inputs, out_grad: Tensor) -> Inputs:
        return torch.autograd.grad(f(*inputs), inputs, out_grad)

    for inputs in sets:
        for tensor in inputs:
            tensor.requires_grad_()
    pairs = zip(sets, out_grads, strict=True)
    both = median_ms([functools.partial(run, *pair) for pair in pairs], device)
    return {"forward_ms": forward, "forward_backward_ms": both}


@torch.no_grad()
def median_of(f: Callable[..., Any], make: Callable[[], Inputs], device: torch.device) -> float:
    return median_ms([functools.partial(f, *inputs) for inputs in input_sets(make, device)], device)


def input_sets(make: Callable[[], Inputs], device: torch.device) -> list[Inputs]:
    """So many inputs that a set has left the L2 cache when its turn comes again."""
    first = make()
    if device.type == "cpu":
        return [first, make()]
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    count = math.ceil(2 * cache / sum(t.nbytes for t in first))
    return [first, *(make() for _ in range(min(32, count) - 1))]


def median_ms(calls: Sequence[Callable[[], Any]], device: torch.device) -> float:
    """Median device milliseconds of one call; the calls take turns."""
    turns = itertools.cycle(calls)
    for _ in range(max(3, len(calls))):
        next(turns)()
    synchronize(device)
    began = time.perf_counter()
    for _ in range(3):
        next(turns)()
    queued = (time.perf_counter() - began) / 3
    synchronize(device)
    each = (time.perf_counter() - began) / 3
    if device.type == "cpu":
        return 1e3 * each
    # many short calls between two events, or the events' own microseconds would count
    inner = max(1, min(16, round(1e-3 / each)))
    # work of about 0.2 ms each, behind which the host queues the calls: launches are not what is measured
    spacers = min(20, 1 + int(inner * queued / 2e-4))
    times = []
    for _ in range(max(7, min(40, round(0.25 / (each * inner))))):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(spacers):
            spacer(device).neg_()
        start.record()
        for _ in range(inner):
            next(turns)()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / inner)
    return statistics.median(times)


@functools.cache
def spacer(device: torch.device) -> Tensor:
    return torch.randn(1 << 27, device=device)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def pick(tiny: bool) -> torch.device:
    if tiny:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device; --tiny runs on the CPU")
    return torch.device("cuda")


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def versions(device: torch.device) -> Numbers:
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "cpu",
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers") if installed("transformers") else None,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "python": platform.python_version(),
    }


def attempt(f: Callable[[], Numbers]) -> Numbers:
    try:
        return f()
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("step", "ops"))
    parser.add_argument("--json", action="store_true", help="on one line")
    parser.add_argument("--tiny", action="store_true", help="small shapes on the CPU")
    options = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for the object alone
        result = attempt(functools.partial({"step": step, "ops": ops}[options.what], options.tiny))
    print(json.dumps(result, indent=None if options.json else 1))
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main())
