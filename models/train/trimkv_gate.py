"""Trains TrimKV's gate (docs/design/methods/uniform.md#trimkv) for a checkpoint that train.py wrote.

  python3 models/train/trimkv_gate.py --kvtwin=... --model=models/tiny/tasks-6x256 --out=trimkv.safetensors

A gate gives every token of every KV head a beta below 1; attention to it decays as beta^(t-p). Only the gates learn:
answers must stay right while the sum of the decays, averaged over tokens, stays within the capacity (--kv-entries).
"""

import math
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

import frozen
import llama
import task_data

TASKS = ["multi_key", "variable_tracking", "old_result", "question_first", "multi_value"]


class Gate(torch.nn.Module):
    """The gate of one layer. Shapes: kernels/scoring/score_gate.h."""

    def __init__(self, shape, width, source):
        super().__init__()
        draw = lambda *size: torch.nn.Parameter(torch.randn(size, generator=source) / math.sqrt(size[-1]))
        self.w1, self.b1 = draw(width, shape.hidden), torch.nn.Parameter(torch.zeros(width))
        self.w2 = draw(shape.kv_heads, width)
        self.b2 = torch.nn.Parameter(torch.full((shape.kv_heads,), 8.0))

    def forward(self, x):
        """log beta, [B][H][T]."""
        return F.logsigmoid(F.silu(x @ self.w1.T + self.b1) @ self.w2.T + self.b2).transpose(1, 2)


def faded(model, gates, ids):
    """(logits, per layer [B][H]: sum of the decays for a mean token). Attention to a key decays with its age."""
    shape, t = model.shape, ids.shape[1]
    at = torch.arange(t, device=ids.device)
    cos, sin = llama.rotation(shape, at)
    age = (at[:, None] - at[None]).clamp(min=0).float()
    hidden_from = at[None] > at[:, None]
    x, held = model.embed(ids), []
    for layer, gate in zip(model.model.layers, gates):
        normed = layer.input_layernorm(x)
        q, k, v = layer.self_attn.heads(normed, cos, sin)
        fade = gate(normed)[:, :, None, :] * age  # [B][H][T][T]
        held.append(fade.exp().masked_fill(hidden_from, 0).sum(-1))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(shape.head_dim)
        scores = scores + fade.repeat_interleave(shape.query_heads // shape.kv_heads, 1)
        y = torch.softmax(scores.masked_fill(hidden_from, -torch.inf), -1) @ v
        x = x + layer.self_attn.o_proj(y.transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(model.model.norm(x)), torch.stack(held)


def main():
    parser = frozen.arguments(batch=24)
    parser.add_argument("--kv-entries", type=int, default=64, help="of a head, that may be held on average")
    parser.add_argument("--capacity", type=float, default=1.0, help="weight of what is held beyond that")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--sessions", type=int, default=1600, help="of each task")
    args = parser.parse_args()
    model = frozen.load(args.model, args.device)
    ids, marks = frozen.sessions(args.kvtwin, tempfile.mkdtemp(), TASKS, "train", 3_000 + args.seed, args.sessions,
                                 args.tokens, args.questions)
    source = torch.Generator().manual_seed(args.seed)
    gates = torch.nn.ModuleList(Gate(model.shape, args.width, source) for _ in range(model.shape.layers)).to(args.device)

    def loss_of(step):
        part = frozen.part_of(step, args.batch, len(ids))
        inputs, wanted, weights = task_data.to_batch(ids[part], marks[part], args.device)
        logits, held = faded(model, gates, inputs)
        each = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
        answers = (each * weights.flatten()).sum() / weights.sum()
        above = F.relu(held - args.kv_entries).mean() / args.kv_entries
        return answers + args.capacity * above, lambda: (f" answers {answers.item():.4f} held "
                                                         f"{held[..., -1].mean().item():.1f} above {above.item():.3f}")

    frozen.learn("trimkv", gates.parameters(), args, args.steps, loss_of)
    frozen.save({f"layers.{i}.gate.{name}": value for i, gate in enumerate(gates)
                 for name, value in gate.named_parameters()}, args.out)


if __name__ == "__main__":
    main()
