"""Trains Judge Q's soft tokens (docs/design/methods/judge-q.md#training)
for a checkpoint that train.py wrote.

  python3 models/train/judge_q.py --kvtwin=... --model=models/tiny/tasks-6x256 --out=judge_q.safetensors

Only the soft tokens learn: --rows tokens after a prompt, whose attention to the prompt should equal that of the
response, per layer and query head. The responses are the model's own, decoded greedily. Several numbers of rows learn
beside one another, each in a file of its own: --rows=4,8,16 and --out=judge_q_{rows}.safetensors. Prompts are passed once,
because soft tokens stand behind them and cannot reach them: a step costs the soft tokens alone, at 8,192 tokens too.

The loss is the paper's squared error (mse), times the square of the session's length: without this constant factor
gradients are below the optimiser's epsilon. --loss=kl compares the maps by divergence instead. --softmax is that of the
evaluation: over the prompt only (`renormalise: true`), or a serving kernel's, which includes the rows themselves.
"""

import dataclasses
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


@dataclasses.dataclass
class Prompts:
    """Keys and values of prompts, by layer [B][H][T][d], and the prompts' lengths [B]. Tokens behind a prompt's end are
    there but not seen."""
    k: list
    v: list
    length: torch.Tensor
    first: torch.Tensor  # the token that the model says next

    def part(self, rows):
        return Prompts([k[rows] for k in self.k], [v[rows] for v in self.v], self.length[rows], self.first[rows])


@torch.no_grad()
def read(model, ids, begin, device, tokens=1 << 15):
    """Passes the sessions ids [B][T] once, `tokens` at a time. Prompts end at begin [B]; what follows cannot reach them."""
    shape, count = model.shape, len(ids)
    k, v = (torch.empty(shape.layers, count, shape.kv_heads, ids.shape[1], shape.head_dim, device=device) for _ in range(2))
    first = torch.empty(count, dtype=torch.long, device=device)
    rows = max(1, tokens // ids.shape[1])
    for part in (slice(at, at + rows) for at in range(0, count, rows)):
        x = model.embed(torch.from_numpy(ids[part].astype(np.int64)).to(device))
        cos, sin = llama.rotation(shape, torch.arange(x.shape[1], device=device))
        for number, layer in enumerate(model.model.layers):
            _, own_k, own_v = layer.self_attn.heads(layer.input_layernorm(x), cos, sin)
            group = shape.query_heads // shape.kv_heads
            k[number, part], v[number, part] = own_k[:, ::group], own_v[:, ::group]
            x = layer(x, cos, sin)
        last = x[torch.arange(len(x), device=device), torch.from_numpy(begin[part] - 1).to(device)]
        first[part] = model.lm_head(model.model.norm(last)).argmax(-1)
    return Prompts(list(k), list(v), torch.from_numpy(begin).to(device), first)


def attend(attention, hidden, k, v, length, kernel):
    """Attention of n tokens behind their prompts, and the map [B][Hq][n][T] of what they see of the prompts."""
    b, n, _ = hidden.shape
    at = length[:, None] + torch.arange(n, device=hidden.device)
    cos, sin = (x.view(b, 1, n, -1) for x in llama.rotation(attention.shape, at.flatten()))
    q, own_k, own_v = attention.heads(hidden, cos, sin)
    grouped = q.reshape(b, k.shape[1], -1, q.shape[3])  # the query heads of a KV head read it together
    scale = 1 / math.sqrt(q.shape[3])
    behind = (grouped @ k.transpose(2, 3) * scale).view(b, q.shape[1], n, -1)
    outside = (torch.arange(k.shape[2], device=k.device) >= length[:, None])[:, None, None]
    behind = behind.masked_fill(outside, -torch.inf)
    later = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    own = (q @ own_k.transpose(2, 3) * scale).masked_fill(later, -torch.inf)
    seen = torch.softmax(torch.cat([behind, own], -1), -1)
    of_prompt = seen[..., :k.shape[2]]
    y = (of_prompt.reshape(grouped.shape[:3] + (-1,)) @ v).view(q.shape) + seen[..., k.shape[2]:] @ own_v
    return attention.o_proj(y.transpose(1, 2).flatten(2)), of_prompt if kernel else torch.softmax(behind, -1)


def follow(model, prompts, x, kernel=False):
    """Passes tokens x [B][n][D] behind the prompts; returns (outputs [B][n][D], a map by layer)."""
    maps = []
    for layer, k, v in zip(model.model.layers, prompts.k, prompts.v):
        y, seen = attend(layer.self_attn, layer.input_layernorm(x), k, v, prompts.length, kernel)
        maps.append(seen)
        x = x + y
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return x, maps


def mean_map(maps, counts):
    """Mean over the first `counts` [B] tokens of each sample: [layers][B][Hq][T]."""
    real = (torch.arange(maps[0].shape[2], device=counts.device) < counts[:, None]).float()[:, None, :, None]
    return torch.stack([(seen * real).sum(2) / real.sum(2) for seen in maps])


@torch.no_grad()
def respond(model, prompts, most):
    """The model's own responses, decoded greedily: [B][most] tokens, those behind an end included."""
    said = prompts.first[:, None]
    while said.shape[1] < most:
        x, _ = follow(model, prompts, model.embed(said))
        said = torch.cat([said, model.lm_head(model.model.norm(x[:, -1:])).argmax(-1)], 1)
    return said


def lengths(said, limit):
    """Tokens of the responses, up to and with their end, and at most limit [B]."""
    ends = (said == END).int()
    first = torch.where(ends.amax(1) > 0, ends.argmax(1) + 1, said.shape[1])
    return torch.minimum(first, limit)


def right_answers(ids, begin, length, device):
    """[B][most] tokens, padded with END."""
    out = np.full((len(ids), int(length.max())), END)
    for row, (own, at, count) in enumerate(zip(ids, begin, length)):
        out[row, :count] = own[at:at + count]
    return torch.from_numpy(out.astype(np.int64)).to(device)


def distance(wanted, got, loss):
    if loss == "mse":
        return ((wanted - got) ** 2).mean() * wanted.shape[-1] ** 2
    share = lambda x: (x / x.sum(-1, keepdim=True).clamp(min=1e-9) + 1e-9).log()
    weight = wanted / wanted.sum(-1, keepdim=True).clamp(min=1e-9)
    return (weight * (share(wanted) - share(got))).sum(-1).mean()


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
    parser.add_argument("--sessions", type=int, help="of each task; their keys and values stay on the device (default: 20 batches)")
    args = parser.parse_args()
    args.sessions = args.sessions or args.batch * 20
    args.rows = [int(rows) for rows in args.rows.split(",")]
    if len(args.rows) > 1 and "{rows}" not in args.out:
        parser.error(f"--out is {args.out}; with several --rows it needs {{rows}} in its name")
    return args


def main():
    args = options()
    model = frozen.load(args.model, args.device)
    # One question each, at the end of the prompt.
    tasks = args.tasks.split(",")
    ids, marks = frozen.sessions(args.kvtwin, tempfile.mkdtemp(), tasks, "train", 900 + args.seed, args.sessions,
                                 args.tokens, 1)
    begin, length = contexts(marks)
    softs = {rows: initial(model, ids, rows, args) for rows in args.rows}
    prompts = read(model, ids, begin, args.device)
    said = right = right_answers(ids, begin, length, args.device)
    limit = torch.from_numpy(length).to(args.device)
    parts = [slice(at, at + args.batch) for at in range(0, len(ids), args.batch)]
    if args.responses == "own":
        said = torch.cat([respond(model, prompts.part(part), right.shape[1]) for part in parts])
    counts = lengths(said, limit)
    same = (said == right) | (torch.arange(right.shape[1], device=args.device) >= limit[:, None])
    print(f"judge_q: {len(ids)} sessions; {same.all(1).float().mean():.3f} of the responses are the right ones", flush=True)

    def loss_of(step):
        part = frozen.part_of(step, args.batch, len(ids))
        own, kernel = prompts.part(part), args.softmax == "kernel"
        with torch.no_grad():
            wanted = mean_map(follow(model, own, model.embed(said[part]), kernel)[1], counts[part])
        losses = {}
        for rows, soft in softs.items():
            _, maps = follow(model, own, soft[None].expand(len(wanted[0]), -1, -1), kernel)
            losses[rows] = distance(wanted, mean_map(maps, torch.full_like(counts[part], rows)), args.loss)
        details = lambda: " " + " ".join(f"{rows}:{loss.item():.4f}" for rows, loss in losses.items())
        return torch.stack(list(losses.values())).sum(), details

    frozen.learn("judge_q", softs.values(), args, args.steps, loss_of)
    for rows, soft in softs.items():
        frozen.save({"soft_tokens": soft}, args.out.replace("{rows}", str(rows)))


if __name__ == "__main__":
    main()
