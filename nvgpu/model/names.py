"""Tensor names of the Qwen3.5 family, as in its Hugging Face checkpoints."""

EMBED = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


def layer(index: int, tail: str) -> str:
    """Full name of the tensor `tail` of a layer, such as `mlp.up_proj.weight`."""
    return f"model.layers.{index}.{tail}"


INPUT_NORM = "input_layernorm.weight"
POST_NORM = "post_attention_layernorm.weight"
Q_NORM = "self_attn.q_norm.weight"
K_NORM = "self_attn.k_norm.weight"
ATTENTION = {
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
}
GDN = {
    "in_qkv": "linear_attn.in_proj_qkv.weight",
    "in_z": "linear_attn.in_proj_z.weight",
    "in_a": "linear_attn.in_proj_a.weight",
    "in_b": "linear_attn.in_proj_b.weight",
    "out": "linear_attn.out_proj.weight",
}
GDN_A_LOG = "linear_attn.A_log"
GDN_DT_BIAS = "linear_attn.dt_bias"
GDN_NORM = "linear_attn.norm.weight"
GDN_CONV = "linear_attn.conv1d.weight"
MLP = {"gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight"}

BODY = (*ATTENTION.values(), *(GDN[k] for k in ("in_qkv", "in_z", "out")), *MLP.values())
"""The linears of a layer that become binary low-rank."""
LEADS = {
    GDN["in_z"]: GDN["in_qkv"],
    ATTENTION["k"]: ATTENTION["q"],
    ATTENTION["v"]: ATTENTION["q"],
    MLP["up"]: MLP["gate"],
}
"""Linears of the body that read the same input as another one: the one that stands for them."""


def lead(tail: str) -> str:
    """The linear whose input is also that of the linear `tail`, a tensor name without its layer."""
    return LEADS.get(tail, tail)
