"""Trains Judge Q's soft tokens (docs/design/methods/judge-q.md#training)
for a checkpoint that train.py wrote.

  python3 models/train/judge_q.py --kvtwin=... --model=models/tiny/tasks-6x256 --out=judge_q.safetensors

Only the soft tokens learn: 32 tokens after a prompt, whose attention to the prompt should equal that of the answer,
per layer and query head. Answers are the right ones (the model gives them itself in almost all cases). The loss
is the divergence of the two attention maps, each normalised over the prompt: the squared error of the paper has
gradients of the order 1/N^2 here.
"""

import math
import tempfile

import numpy as np
import torch

import frozen
import llama
import task_data

TASKS = ["multi_key", "variable_tracking", "question_first", "tool_schema"]


def contexts(ids, marks):
    """Sessions of one question: prompt length and answer length of each."""
    scored = marks == task_data.SCORED
    begin = scored.argmax(1)
    return begin, scored.sum(1)


def maps(model, x, prompt, rows, counts):
    """Mean attention to each prompt of `rows` tokens after it, normalised: [layers][B][Hq][T]. x: [B][T+rows][D],
    with the tokens of each sample at positions prompt..prompt+rows; counts: how many of them are real."""
    b, t, _ = x.shape
    at = torch.arange(t, device=x.device)
    cos, sin = llama.rotation(model.shape, at)
    index = prompt[:, None] + torch.arange(rows, device=x.device)
    real = (torch.arange(rows, device=x.device)[None] < counts[:, None]).float()
    inside = (at[None] < prompt[:, None])[:, None, None]
    out = []
    for layer in model.model.layers:
        q, k, _ = layer.self_attn.heads(layer.input_layernorm(x), cos, sin)
        asked = torch.gather(q, 2, index[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3]))
        scores = (asked @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
        seen = torch.softmax(scores.masked_fill(~inside, -torch.inf), -1)
        out.append((seen * real[:, None, :, None]).sum(2) / real.sum(1)[:, None, None])
        x = layer(x, cos, sin)
    return torch.stack(out)


def place(x, rows_of, prompt):
    """x with `rows_of` [B][n][D] written at positions prompt..prompt+n."""
    index = (prompt[:, None] + torch.arange(rows_of.shape[1], device=x.device))[..., None].expand_as(rows_of)
    return x.scatter(1, index, rows_of)


def main():
    parser = frozen.arguments(seconds=45, batch=64, tokens=256)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rows", type=int, default=32)
    args = parser.parse_args()
    model = frozen.load(args.model, args.device)
    # Tasks with something to choose, one question each, at the end or at the start.
    ids, marks = frozen.sessions(args.kvtwin, tempfile.mkdtemp(), TASKS, "train", 900 + args.seed, args.batch * 40,
                                 args.tokens, 1)
    begin, length = contexts(ids, marks)
    source = torch.Generator().manual_seed(args.seed)
    soft = (torch.randn(args.rows, model.shape.hidden, generator=source) * 0.02).to(args.device)
    start = model.embed(torch.tensor(ids.astype(np.int64)[:64], device=args.device)).mean((0, 1))
    soft = torch.nn.Parameter(soft + start)

    def divergence(step):
        part = frozen.part_of(step, args.batch, len(ids))
        tokens, prompt, counts = (torch.from_numpy(x[part].astype(np.int64)).to(args.device)
                                  for x in (ids, begin, length))
        x = torch.nn.functional.pad(model.embed(tokens), (0, 0, 0, args.rows))
        with torch.no_grad():
            wanted = maps(model, x, prompt, int(counts.max()), counts)
        asked = place(x, soft[None].expand(len(tokens), -1, -1), prompt)
        got = maps(model, asked, prompt, args.rows, torch.full_like(counts, args.rows))
        return (wanted * ((wanted + 1e-9).log() - (got + 1e-9).log())).sum(-1).mean(), lambda: ""

    frozen.learn("judge_q", [soft], args, args.steps, divergence)
    frozen.save({"soft_tokens": soft}, args.out)


if __name__ == "__main__":
    main()
