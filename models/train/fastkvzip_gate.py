"""Trains FastKVzip's gate (docs/design/methods/uniform.md#kvzip) for a checkpoint that train.py wrote.

  python3 models/train/fastkvzip_gate.py --kvtwin=... --model=models/tiny/tasks-6x256 --out=fastkvzip.safetensors

A gate predicts, from a token's hidden state alone, the attention that the token will get. Its target:
  --target=repeat     as published: KVzip's score, the largest attention from any token of a second reading
  --target=questions  the largest attention from any token of many questions and their answers: the use of these
                      models. A second reading needs every word of filler too, a question needs none
Loss: binary cross entropy of score and gate, both in 0..1.
"""

import math
import tempfile

import numpy as np
import torch

import frozen

WIDTH = 16  # of gate vectors: FastKvzipGate::kWidth
TASKS = ["multi_key", "variable_tracking", "old_result", "multi_value"]


class Gate(torch.nn.Module):
    """The gate of one layer. Shapes: kernels/scoring/score_gate.h."""

    def __init__(self, shape, source):
        super().__init__()
        draw = lambda *size, by: torch.nn.Parameter(torch.randn(size, generator=source) / math.sqrt(by))
        heads, queries = shape.kv_heads, shape.query_heads
        self.shape = shape
        self.wq, self.bq = draw(queries * WIDTH, shape.hidden, by=shape.hidden), draw(queries * WIDTH, by=shape.hidden)
        self.wk = draw(heads * WIDTH, shape.hidden, by=shape.hidden)
        self.q_norm, self.k_norm = (torch.nn.Parameter(torch.ones(WIDTH)) for _ in range(2))
        self.k_base = draw(heads, WIDTH, WIDTH, by=1)
        self.bias = torch.nn.Parameter(torch.zeros(queries))

    def forward(self, x):
        """[B][H][T] in 0..1."""
        b, t, _ = x.shape
        heads, group = self.shape.kv_heads, self.shape.query_heads // self.shape.kv_heads
        norm = lambda v, w: v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6) * w
        q = norm((x @ self.wq.T + self.bq).view(b, t, heads, group, WIDTH), self.q_norm)
        k = norm((x @ self.wk.T).view(b, t, heads, 1, WIDTH), self.k_norm)
        z = (q * k).sum(-1) / 4 + self.bias.view(heads, group)
        base = torch.einsum("bthgc,hsc->bthgs", q, self.k_base) / 4
        return torch.sigmoid(z - torch.logsumexp(base, -1)).mean(-1).permute(0, 2, 1)


def repeat_batch(ids, end):
    """The context twice: (ids, positions of the second copy, visible keys [B][R][T]). end: tokens of context."""
    again = torch.cat([ids[:, :end], ids[:, :end]], 1)
    rows = torch.arange(end, 2 * end, device=ids.device)
    seen = torch.arange(2 * end, device=ids.device)[None] <= rows[:, None]
    return again, rows, seen[None].expand(len(ids), -1, -1)


def questions_batch(ids, begin):
    """All tokens from the first question on are queries, masked per session. begin [B]: where questions begin."""
    at = torch.arange(ids.shape[1], device=ids.device)
    asks = (at[None] >= begin[:, None]) & (ids > 0)
    seen = (at[None, :] <= at[:, None])[None] & asks[:, :, None]
    return ids, at, seen


def targets(model, args, ids, begin):
    """Yields by layer: (hidden of the context [B][N][D], wanted [B][H][N])."""
    group = model.shape.query_heads // model.shape.kv_heads
    end = int(begin.min())
    if args.target == "repeat":
        whole, rows, seen = repeat_batch(ids, end)
    else:
        whole, rows, seen = questions_batch(ids, begin)
    for hidden, q, k in frozen.layers_of(model, whole):
        yield hidden[:, :end], frozen.most_attended(q[:, :, rows], k, group, seen)[:, :, :end]


def main():
    parser = frozen.arguments(seconds=45, batch=32)
    parser.add_argument("--target", choices=["repeat", "questions"], default="repeat")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--sessions", type=int, default=1600, help="of each task")
    args = parser.parse_args()
    model = frozen.load(args.model, args.device)
    ids, marks = frozen.sessions(args.kvtwin, tempfile.mkdtemp(), TASKS, "train", 2_000 + args.seed, args.sessions,
                                 args.tokens, args.questions)
    # The context: everything before the first scored answer and its question (3 tokens).
    begin = (marks == 2).argmax(1) - 3
    ids, begin = ids[begin >= 32], begin[begin >= 32]
    order = np.argsort(begin, kind="stable")  # equal lengths in a batch, because a batch trains on its shortest context
    batches = np.random.default_rng(args.seed).permutation(len(ids) // args.batch)
    source = torch.Generator().manual_seed(args.seed)
    gates = torch.nn.ModuleList(Gate(model.shape, source) for _ in range(model.shape.layers)).to(args.device)

    def loss_of(step):
        first = batches[step % len(batches)] * args.batch
        part = order[first:first + args.batch]
        tokens = torch.from_numpy(ids[part].astype(np.int64)).to(args.device)
        with torch.no_grad():
            wanted = list(targets(model, args, tokens, torch.from_numpy(begin[part]).to(args.device)))
        losses = [torch.nn.functional.binary_cross_entropy(gate(hidden).clamp(1e-6, 1 - 1e-6), score)
                  for gate, (hidden, score) in zip(gates, wanted)]
        return torch.stack(losses).mean(), lambda: ""

    frozen.learn(f"fastkvzip {args.target}", gates.parameters(), args, args.steps, loss_of)
    frozen.save({f"layers.{i}.gate.{name}": value for i, gate in enumerate(gates)
                 for name, value in gate.named_parameters()}, args.out)


if __name__ == "__main__":
    main()
