"""Trains Judge Q's soft tokens (docs/design/methods/judge-q.md#training)
for a checkpoint that train.py wrote.

  python3 models/train/judge_q.py --kvtwin=... --model=models/tiny/tasks-6x256 --out=judge_q.safetensors

Only the soft tokens learn: --rows tokens after a prompt, whose attention to the prompt should equal that of the
response, per layer and query head. The responses are the model's own, decoded greedily. Several numbers of rows learn
beside one another, each in a file of its own: --rows=4,8,16 and --out=judge_q_{rows}.safetensors.

The loss is the paper's squared error (mse), times the square of the session's length: without this constant factor
gradients are below the optimiser's epsilon. --loss=kl compares the maps by divergence instead. --softmax is that of the
evaluation: over the prompt only (`renormalise: true`), or a serving kernel's, which includes the rows themselves.
"""

import math
import tempfile

import numpy as np
import torch

import frozen
import llama
import task_data

# Tasks that evaluations of Judge Q do not ask (multi_key, variable_tracking, question_first, tool_schema).
TASKS = ["needle", "multi_value", "multi_hop", "old_result"]
END = 7  # traces/tasks/task_tokens.h


def contexts(marks):
    """Sessions of one question: prompt length and answer length of each."""
    scored = marks == task_data.SCORED
    begin = scored.argmax(1)
    return begin, scored.sum(1)


@torch.no_grad()
def respond(model, ids, begin, length, device, rows=256):
    """Replaces the right answers by the model's own, in place; returns their lengths, up to and with their end, and
    at most those of the right ones."""
    counts = length.copy()
    for first in range(0, len(ids), rows):
        part = slice(first, first + rows)
        x = torch.from_numpy(ids[part].astype(np.int64)).to(device)
        each = torch.arange(len(x), device=device)
        at = torch.from_numpy(begin[part]).to(device)
        for i in range(int(length[part].max())):
            # A prompt ends at `at`, so what follows it cannot reach the row that is read.
            x[each, (at + i).clamp(max=x.shape[1] - 1)] = model(x)[each, (at + i - 1).clamp(max=x.shape[1] - 1)].argmax(-1)
        ids[part] = x.cpu().numpy()
        for row in range(first, min(first + rows, len(ids))):
            ends = np.nonzero(ids[row, begin[row]:begin[row] + length[row]] == END)[0]
            if len(ends):
                counts[row] = ends[0] + 1
    return counts


def maps(model, x, prompt, rows, counts, kernel):
    """Mean attention to each prompt of `rows` tokens after it: [layers][B][Hq][T]. x: [B][T+rows][D], with the tokens
    of each sample at positions prompt..prompt+rows; counts: how many of them are real. `kernel`: the softmax includes
    the tokens themselves, up to the one that asks."""
    b, t, _ = x.shape
    at = torch.arange(t, device=x.device)
    cos, sin = llama.rotation(model.shape, at)
    index = (prompt[:, None] + torch.arange(rows, device=x.device)).clamp(max=t - 1)
    real = (torch.arange(rows, device=x.device)[None] < counts[:, None]).float()
    inside = (at[None] < prompt[:, None])[:, None, None]
    seen_by = (at[None, None] <= index[:, :, None])[:, None] if kernel else inside
    out = []
    for layer in model.model.layers:
        q, k, _ = layer.self_attn.heads(layer.input_layernorm(x), cos, sin)
        asked = torch.gather(q, 2, index[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3]))
        scores = (asked @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
        seen = torch.softmax(scores.masked_fill(~seen_by, -torch.inf), -1).masked_fill(~inside, 0)
        out.append((seen * real[:, None, :, None]).sum(2) / real.sum(1)[:, None, None])
        x = layer(x, cos, sin)
    return torch.stack(out)


def distance(wanted, got, loss):
    if loss == "mse":
        return ((wanted - got) ** 2).mean() * wanted.shape[-1] ** 2
    share = lambda x: (x / x.sum(-1, keepdim=True).clamp(min=1e-9) + 1e-9).log()
    weight = wanted / wanted.sum(-1, keepdim=True).clamp(min=1e-9)
    return (weight * (share(wanted) - share(got))).sum(-1).mean()


def place(x, rows_of, prompt):
    """x with `rows_of` [B][n][D] written at positions prompt..prompt+n."""
    index = (prompt[:, None] + torch.arange(rows_of.shape[1], device=x.device))[..., None].expand_as(rows_of)
    return x.scatter(1, index, rows_of)


def initial(model, ids, rows, args):
    source = torch.Generator().manual_seed(args.seed)
    soft = (torch.randn(rows, model.shape.hidden, generator=source) * 0.02).to(args.device)
    start = model.embed(torch.tensor(ids.astype(np.int64)[:64], device=args.device)).mean((0, 1))
    return torch.nn.Parameter(soft + start)


def options():
    parser = frozen.arguments(seconds=45, batch=64, tokens=256)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rows", default="32", help="soft tokens; several numbers: 4,8,16")
    parser.add_argument("--loss", choices=["mse", "kl"], default="mse")
    parser.add_argument("--softmax", choices=["prompt", "kernel"], default="prompt")
    parser.add_argument("--responses", choices=["own", "right"], default="own")
    parser.add_argument("--tasks", default=",".join(TASKS))
    args = parser.parse_args()
    args.rows = [int(rows) for rows in args.rows.split(",")]
    if len(args.rows) > 1 and "{rows}" not in args.out:
        parser.error(f"--out is {args.out}; with several --rows it needs {{rows}} in its name")
    return args


def main():
    args = options()
    model = frozen.load(args.model, args.device)
    # One question each, at the end of the prompt.
    tasks = args.tasks.split(",")
    ids, marks = frozen.sessions(args.kvtwin, tempfile.mkdtemp(), tasks, "train", 900 + args.seed, args.batch * 20,
                                 args.tokens, 1)
    begin, length = contexts(marks)
    right = ids.copy()
    counted = respond(model, ids, begin, length, args.device) if args.responses == "own" else length
    print(f"judge_q: {(ids == right).all(1).mean():.3f} of the responses are the right ones", flush=True)
    softs = {rows: initial(model, ids, rows, args) for rows in args.rows}

    def loss_of(step):
        part = frozen.part_of(step, args.batch, len(ids))
        tokens, prompt, counts = (torch.from_numpy(x[part].astype(np.int64)).to(args.device)
                                  for x in (ids, begin, counted))
        base = model.embed(tokens)
        kernel = args.softmax == "kernel"
        with torch.no_grad():
            wanted = maps(model, base, prompt, int(counts.max()), counts, kernel)
        losses = {}
        for rows, soft in softs.items():
            asked = torch.nn.functional.pad(base, (0, 0, 0, rows))
            asked = place(asked, soft[None].expand(len(tokens), -1, -1), prompt)
            got = maps(model, asked, prompt, rows, torch.full_like(counts, rows), kernel)
            losses[rows] = distance(wanted, got[..., :wanted.shape[-1]], args.loss)
        said = lambda: " " + " ".join(f"{rows}:{loss.item():.4f}" for rows, loss in losses.items())
        return torch.stack(list(losses.values())).sum(), said

    frozen.learn("judge_q", softs.values(), args, args.steps, loss_of)
    for rows, soft in softs.items():
        frozen.save({"soft_tokens": soft}, args.out.replace("{rows}", str(rows)))


if __name__ == "__main__":
    main()
