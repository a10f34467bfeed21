"""A small, plain decoder of the Llama or the Qwen3 family: what engine/cpu/forward.cc computes, for training.

Names of parameters are those of Hugging Face checkpoints, so that export is a cast. Grouped-query attention,
rotary positions in halves, RMSNorm, SwiGLU, no biases, separate output matrix. Qwen3 also normalises every head's
queries and keys, before they are rotated.
"""

import dataclasses
import hashlib
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Shape:
    vocab: int = 256
    hidden: int = 256
    layers: int = 6
    query_heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    intermediate: int = 512
    theta: float = 10000.0
    eps: float = 1e-5
    window: int = 8192
    family: str = "llama"  # or qwen3


def rotation(shape, positions):
    """cos and sin, [T][head_dim]; both halves of a head have the same frequencies."""
    half = torch.arange(0, shape.head_dim, 2, device=positions.device, dtype=torch.float32)
    angle = positions.float()[:, None] * shape.theta ** (-half / shape.head_dim)
    return torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.query_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.query_heads * shape.head_dim, shape.hidden, bias=False)
        if shape.family == "qwen3":
            self.q_norm, self.k_norm = (Norm(shape.head_dim, shape.eps) for _ in range(2))

    def lengths(self, x):
        """Mean lengths of a head's queries and keys before normalisation."""
        return [p(x).unflatten(-1, (-1, self.shape.head_dim)).norm(dim=-1).mean() for p in (self.q_proj, self.k_proj)]

    def heads(self, x, cos, sin):
        """q [B][Hq][T][d], k and v [B][Hq][T][d]: a KV head is repeated for its query heads."""
        b, t, _ = x.shape
        s = self.shape
        q = self.q_proj(x).view(b, t, s.query_heads, s.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)
        if s.family == "qwen3":
            q, k = self.q_norm(q), self.k_norm(k)
        group = s.query_heads // s.kv_heads
        k = rotate(k, cos, sin).repeat_interleave(group, 1)
        return rotate(q, cos, sin), k, v.repeat_interleave(group, 1)

    def forward(self, x, cos, sin, queries=None):
        q, k, v = self.heads(x, cos, sin)
        if queries is not None:
            queries.append(q)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, x, cos, sin, queries=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, queries)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def draw(self, seed):
        """Initial weights, drawn on the CPU, so that they do not depend on the device."""
        source = torch.Generator().manual_seed(seed)
        small = 0.02 / math.sqrt(2 * self.shape.layers)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.dim() < 2:
                    continue
                into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
                drawn = torch.randn(weight.shape, generator=source) * (small if into_stream else 0.02)
                weight.copy_(drawn)
        return self

    @torch.no_grad()
    def take_over(self, weights, ids):
        """Continues from a checkpoint's weights. If it has no norms of queries and keys, they start as the mean lengths
        over `ids` [B][T], so that the model starts close to the checkpoint's."""
        missing = self.load_state_dict(weights, strict=False).missing_keys
        if not missing:
            return
        x = self.embed(ids)
        cos, sin = rotation(self.shape, torch.arange(ids.shape[1], device=ids.device))
        for layer in self.model.layers:
            attention = layer.self_attn
            for norm, length in zip((attention.q_norm, attention.k_norm), attention.lengths(layer.input_layernorm(x))):
                norm.weight.fill_(length / math.sqrt(self.shape.head_dim))
            x = layer(x, cos, sin)

    def embed(self, ids):
        return self.model.embed_tokens(ids)

    def forward(self, ids, queries=None):
        """Logits [B][T][vocab]. Appends each layer's rotated queries [B][Hq][T][d] to `queries`."""
        x = self.embed(ids)
        cos, sin = rotation(self.shape, torch.arange(ids.shape[1], device=ids.device))
        for layer in self.model.layers:
            x = layer(x, cos, sin, queries)
        return self.lm_head(self.model.norm(x))


def config(shape):
    """config.json as transformers and models/catalog/hf_config.cc read it."""
    return {
        "architectures": ["Qwen3ForCausalLM" if shape.family == "qwen3" else "LlamaForCausalLM"],
        "model_type": shape.family,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.query_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.window,
        "rope_theta": shape.theta,
        "rms_norm_eps": shape.eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def shape_of(folder):
    """The shape that config() wrote."""
    said = json.loads((pathlib.Path(folder) / "config.json").read_text())
    return Shape(vocab=said["vocab_size"], hidden=said["hidden_size"], layers=said["num_hidden_layers"],
                 query_heads=said["num_attention_heads"], kv_heads=said["num_key_value_heads"],
                 head_dim=said["head_dim"], intermediate=said["intermediate_size"], theta=said["rope_theta"],
                 eps=said["rms_norm_eps"], window=said["max_position_embeddings"], family=said["model_type"])


def fingerprint(model):
    """SHA-256 of all weights as they are trained, in fp32."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def write(model, folder):
    """config.json and model.safetensors (bf16): a checkpoint that the engines load."""
    from safetensors.torch import save_file

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(model.shape), indent=1) + "\n")
    tensors = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, str(folder / "model.safetensors.part"), metadata={"format": "pt"})
    (folder / "model.safetensors.part").replace(folder / "model.safetensors")
