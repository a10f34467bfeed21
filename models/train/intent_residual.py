"""Trains IntentKV's residual head (docs/design/methods/intentkv.md#scorer, #training)
for a checkpoint that train.py wrote.

  python3 models/train/intent_residual.py --kvtwin=... --model=models/tiny/tasks-6x256 --out=intent.safetensors

Sessions are replayed in turn order: the memory M of a session adds each turn's mean query at unit length, and the head
corrects the rule's scores of the history. A token of the history is wanted if it is part of an entry that one of the
next five turns says literally: an argument of a tool request, or the value of an answer, which is what these tasks have
of arguments. The entry's key counts with it. Sinks, the query span and the turn's own output are excluded, and so are
turns without a wanted token. Evaluations ask other tasks (asked_again, refined_goal, changing_intent, multi_key).
"""

import math
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

import frozen

TASKS = ["needle", "multi_hop", "old_result", "tool_schema", "question_first"]
AHEAD, PIECE = 5, 2
# traces/tasks/task_tokens.h: tools, keys and values; what may precede a value in its entry.
SYMBOL_FIRST, SYMBOL_END, VALUE_FIRST, SCHEMA = 16, 160, 96, 12


class Residual(torch.nn.Module):
    """The residual head: shapes and initial values as in kernels/scoring/score_intent_residual.h."""

    def __init__(self, dim, source, heads=4, hidden=256):
        super().__init__()
        def draw(*size, by):
            return torch.nn.Parameter((torch.rand(size, generator=source) * 2 - 1) / math.sqrt(by))
        self.dim, self.heads = dim, heads
        self.wq, self.bq = draw(dim, 3 * dim, by=3 * dim), draw(dim, by=3 * dim)
        self.wk, self.bk = draw(dim, dim, by=dim), draw(dim, by=dim)
        self.wv, self.bv = draw(dim, dim, by=dim), draw(dim, by=dim)
        self.wo, self.bo = draw(dim, dim, by=dim), draw(dim, by=dim)
        self.w1, self.b1 = draw(hidden, 4 * dim, by=4 * dim), draw(hidden, by=4 * dim)
        self.w2 = torch.nn.Parameter(torch.zeros(hidden))
        self.b2 = torch.nn.Parameter(torch.zeros(1))
        self.gain = torch.nn.Parameter(torch.ones(1))

    def forward(self, keys, memory, span):
        """f [B][T]. keys [B][T][d], memory [B][d], span [B][n][d]."""
        b, t, d = keys.shape
        m = memory[:, None].expand(b, t, d)
        x = torch.cat([keys, m, keys * m], -1)
        split = lambda v: v.view(b, -1, self.heads, d // self.heads).transpose(1, 2)
        q = split(x @ self.wq.T + self.bq)
        k, v = split(span @ self.wk.T + self.bk), split(span @ self.wv.T + self.bv)
        weights = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(d // self.heads), -1)
        c = (weights @ v).transpose(1, 2).reshape(b, t, d) @ self.wo.T + self.bo
        inner = F.gelu(torch.cat([x, c], -1) @ self.w1.T + self.b1)
        return inner @ self.w2 + self.b2


def wanted_tokens(ids, marks, begins):
    """[sessions][turns][T]: tokens of entries of which the output of one of the next turns, this one included, says a
    literal piece; the name before the piece belongs to its entry."""
    count, turns = begins.shape
    symbol = (ids >= SYMBOL_FIRST) & (ids < SYMBOL_END)
    pair = symbol[:, :-1] & symbol[:, 1:]
    code = ids[:, :-1].astype(np.int64) * 256 + ids[:, 1:]
    names = (ids >= SYMBOL_FIRST) & (ids < VALUE_FIRST) | (ids == SCHEMA)
    out = np.zeros((count, turns, ids.shape[1]), bool)
    for s in range(count):
        said = []
        for turn in range(turns):
            at = begins[s, turn]
            end = at
            while 0 <= at and end + 1 < ids.shape[1] and marks[s, end] > 0:
                end += 1
            said.append(set(code[s, at:end][pair[s, at:end]]) if at >= 0 else set())
        for turn in range(turns):
            pieces = set().union(*said[turn:turn + AHEAD])
            if begins[s, turn] < 0 or not pieces:
                continue
            hit = np.nonzero(pair[s] & np.isin(code[s], list(pieces)))[0]
            hit = hit[hit + PIECE <= begins[s, turn]]
            for i in range(PIECE):
                out[s, turn, hit + i] = True
            before = hit[hit > 0] - 1
            out[s, turn, before[names[s, before]]] = True
    return out


def capture(model, ids):
    """Queries and keys of all layers, [L][B][Hq][T][d]; the keys' mean over layers and heads, [B][T][d]."""
    layers = [(q, k) for _, q, k in frozen.layers_of(model, ids)]
    q, k = (torch.stack([layer[i] for layer in layers]) for i in range(2))
    return q, k, k.mean((0, 2))


def turn_rule(memory, k, candidates):
    """The rule of docs/design/methods/intentkv.md#scorer times the number of candidates: [B][T]."""
    scores = torch.einsum("lbjd,lbjtd->lbjt", memory, k) / math.sqrt(k.shape[-1])
    each = torch.softmax(scores.masked_fill(~candidates[None, :, None], -torch.inf), -1)
    return each.mean((0, 2)) * candidates.sum(1, keepdim=True)


def losses(score, f, wanted, candidates, args):
    fraction = (wanted.sum() / candidates.sum()).clamp(1e-3, 0.5)
    weight = torch.where(wanted, ((1 - fraction) / fraction).clamp(1, 50), torch.ones_like(fraction))
    bce = F.binary_cross_entropy_with_logits(score, wanted.float(), weight=weight, reduction="none")
    bce = bce[candidates].mean()
    # Against the 16 hardest unwanted tokens.
    hard = score.masked_fill(wanted | ~candidates, -1e4).topk(16, 1).values
    rank = F.softplus(hard[:, None, :] - score[:, :, None]).mean(-1)[wanted].mean()
    return bce + args.rank * rank + args.keep * torch.sigmoid(f)[candidates].mean(), rank


def replay(model, head, args, ids, begins, wanted):
    """Yields per turn (loss, rank loss, wanted fraction among the best --kv-entries by the rule, by rule and head)."""
    with torch.no_grad():
        q, k, keys = capture(model, ids)
    memory = torch.zeros(q.shape[0], len(ids), q.shape[2], q.shape[4], device=ids.device)
    at = torch.arange(ids.shape[1], device=ids.device)
    for turn in range(begins.shape[1]):
        begin = begins[:, turn]
        live = begin >= args.window + args.sinks + args.kv_entries
        span = (begin[:, None] - args.window + torch.arange(args.window, device=ids.device)).clamp(min=0)
        rows = torch.gather(q, 3, span[None, :, None, :, None].expand(q.shape[0], -1, q.shape[2], -1, q.shape[4]))
        newest = rows.mean(3)
        if args.query_norm == "unit":
            newest = F.normalize(newest, dim=-1)
        memory = F.normalize(args.gamma * memory + newest, dim=-1)
        candidates = (at[None] >= args.sinks) & (at[None] < (begin - args.window)[:, None]) & live[:, None]
        some = (wanted[:, turn] & candidates).any(1)
        if not some.any():
            continue
        candidates, hoped = candidates[some], (wanted[:, turn] & candidates)[some]
        with torch.no_grad():
            rule = turn_rule(memory[:, some], k[:, some], candidates)
        of_span = torch.gather(keys, 1, span[..., None].expand(-1, -1, keys.shape[2]))[some]
        f = head(keys[some], memory.mean((0, 2))[some], of_span)
        score = rule + head.gain.clamp(0, 1) * f
        loss, rank = losses(score, f, hoped, candidates, args)
        found = []
        for by in (rule, score):
            best = by.detach().masked_fill(~candidates, -1e4).topk(args.kv_entries, 1).indices
            found.append((torch.gather(hoped, 1, best).sum() / hoped.sum()).item())
        yield loss, rank.item(), found


def main():
    parser = frozen.arguments(rate=1e-3, batch=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rank", type=float, default=0.5)
    parser.add_argument("--keep", type=float, default=0.01)
    parser.add_argument("--gamma", type=float, default=0.9)
    parser.add_argument("--query-norm", choices=["unit", "raw"], default="unit")
    parser.add_argument("--window", type=int, default=3, help="rows of a question: the query span")
    parser.add_argument("--sinks", type=int, default=2)
    parser.add_argument("--kv-entries", type=int, default=64)
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--sessions", type=int, default=480, help="of each task")
    args = parser.parse_args()
    model = frozen.load(args.model, args.device)
    ids, marks = frozen.sessions(args.kvtwin, tempfile.mkdtemp(), TASKS, "train", 4_000 + args.seed, args.sessions,
                                 args.tokens, args.questions)
    begins = frozen.answer_begins(marks)
    wanted = wanted_tokens(ids, marks, begins)
    print(f"intent_residual: {wanted.any(2).sum()} turns with {wanted.sum() / wanted.any(2).sum():.1f} wanted tokens", flush=True)
    head = Residual(model.shape.head_dim, torch.Generator().manual_seed(args.seed)).to(args.device)
    batches = len(ids) // args.batch
    order = np.concatenate([np.random.default_rng([args.seed, epoch]).permutation(batches)
                            for epoch in range(args.epochs)])

    def loss_of(step):
        part = slice(order[step] * args.batch, (order[step] + 1) * args.batch)
        on = lambda x: torch.from_numpy(x[part]).to(args.device)
        turns = list(replay(model, head, args, on(ids.astype(np.int64)), on(begins), on(wanted)))
        said = lambda: np.mean([[rank, *found] for _, rank, found in turns], 0)
        return torch.stack([loss for loss, _, _ in turns]).mean(), lambda: (
            " rank {:.4f}, of what is wanted the rule finds {:.3f}, with the head {:.3f};".format(*said()))

    frozen.learn("intent_residual", head.parameters(), args, args.epochs * batches, loss_of, weight_decay=0.01, say_every=20)
    print(f"intent_residual: gain {head.gain.item():.3f}", flush=True)
    frozen.save({f"residual.{name}": value for name, value in head.named_parameters()}, args.out)


if __name__ == "__main__":
    main()
