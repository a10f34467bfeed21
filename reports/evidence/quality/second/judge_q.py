"""Judge Q by number of soft tokens, recomputed: hit rates of entries that the response's own attention would retain.

  python3 judge_q.py build/dev/bin/kvtwin models/tiny/tasks-6x256 [SESSIONS] [BUDGET,...] [WEIGHTS] [TOKENS] [SOFTMAX] [TASK] [PROCESSES]

Sessions of TASK (`multi_key`) with TOKENS (2,048) and one question. Entries of a KV head are ranked by attention over the
prompt, mean over the soft tokens (or the response's four), mean over the group, largest of seven neighbours; the last eight
entries are always retained. SOFTMAX is `prompt`, renormalised there, or `kernel`, which the ranking tokens share. WEIGHTS is
the folder of judge_q_N.safetensors (default: the model's). Besides the weights of each number of tokens the script ranks by
parts of those with 64, four tokens each, and by the prompt's own last eight tokens (SnapKV).
"""

import concurrent.futures
import functools
import pathlib
import sys

import numpy as np

import tiny

WINDOW, KERNEL, RESPONSE = 8, 7, 4
CHUNK = 512  # tokens of a prompt that are passed together


def ranked(model, cache, prompt, queries, own):
    """Scores [layers][KV heads][prompt - WINDOW] of queries by layer, [rows][heads][dim], for cached tokens. `own`: the
    softmax includes the rows themselves, whose keys stand behind the prompt, causally."""
    out = np.empty((model.layers, model.kv_heads, prompt - WINDOW), np.float32)
    rows = len(queries[0])
    later = np.where(np.tril(np.ones((rows, rows), bool)), 0, -np.inf)[:, None]
    for layer in range(model.layers):
        for head in range(model.kv_heads):
            q = queries[layer][:, head * model.group:(head + 1) * model.group]
            keys = cache.k[layer, :prompt + (rows if own else 0), head]
            scores = (q.reshape(-1, model.dim) @ keys.T / np.sqrt(model.dim)).reshape(rows, model.group, -1)
            scores[..., prompt:] += later if own else 0
            mean = tiny.softmax(scores).mean((0, 1))[:prompt - WINDOW]
            padded = np.pad(mean, KERNEL // 2, constant_values=-np.inf)
            out[layer, head] = np.lib.stride_tricks.sliding_window_view(padded, KERNEL).max(-1)
    return out


def retained(scores, budget):
    chosen = np.argsort(scores, -1, kind="stable")[..., ::-1][..., :budget - WINDOW]
    out = np.zeros(scores.shape, bool)
    np.put_along_axis(out, chosen, True, -1)
    return out


def hit_rate(scores, wanted, budget):
    """The forced entries are in both sets."""
    both = (retained(scores, budget) & retained(wanted, budget)).sum(-1) + WINDOW
    return (both / budget).mean()


def context_scores(model, soft, own, ids, spans):
    """Scores of one context by name: the response's, SnapKV's and those of soft tokens."""
    begin, end, _ = spans[-1]
    cache, by = tiny.Cache(model, begin + 64), {}
    for first in range(-(-begin % CHUNK), begin, CHUNK):
        _, prompt = model.run(model.embed(ids[max(first, 0):first + CHUNK]), cache)

    def rank(x, parts):
        queries = model.run(x, cache, store=False)[1]
        for name, first, last in parts:
            by[name] = ranked(model, cache, begin, [q[first:last] for q in queries], own and first == 0)

    rank(model.embed(ids[begin:begin + RESPONSE]), [("response", 0, RESPONSE)])
    by["SnapKV"] = ranked(model, cache, begin, [q[-WINDOW:] for q in prompt], False)
    for n, x in soft.items():
        quarters = [(f"64 tokens, {at} to {at + 3}", at, at + 4) for at in range(0, 64, 4)]
        rank(x, [(f"{n} tokens", 0, n)] + (quarters if n == 64 else []))
    return by


def main():
    tool, folder = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 16
    budgets = [int(b) for b in (sys.argv[4] if len(sys.argv) > 4 else "20,41,102").split(",")]
    weights = pathlib.Path(sys.argv[5] if len(sys.argv) > 5 else folder)
    given = dict(enumerate(sys.argv))
    tokens, own, task = int(given.get(6, 2048)), given.get(7) == "kernel", given.get(8, "multi_key")
    model, rates = tiny.Model(folder), {}
    files = {n: weights / f"judge_q_{n}.safetensors" for n in (4, 8, 16, 32, 64)}
    soft = {n: tiny.tensors(path)["soft_tokens"] for n, path in files.items() if path.exists()}
    asked = tiny.sessions(tool, task, tokens, 1, count)
    with concurrent.futures.ProcessPoolExecutor(int(given.get(9, 1))) as pool:
        for by in pool.map(functools.partial(context_scores, model, soft, own), *zip(*asked)):
            wanted = by.pop("response")
            for name, scores in by.items():
                rates.setdefault(name, []).append([hit_rate(scores, wanted, budget) for budget in budgets])
    print(f"{task}: hit rates, %, of {count} contexts of {tokens} tokens, +- 1.96 standard errors; retained entries: {', '.join(map(str, budgets))}")
    for name, values in rates.items():
        mean, error = 100 * np.mean(values, 0), 196 * np.std(values, 0, ddof=1) / np.sqrt(len(values))
        print(f"{name:22}", "  ".join(f"{m:5.1f} +- {e:.1f}" for m, e in zip(mean, error)))


if __name__ == "__main__":
    main()
