"""Judge Q by number of soft tokens, recomputed: hit rates of entries that the response's own attention would retain.

  python3 judge_q.py build/dev/bin/kvtwin models/tiny/tasks-6x256 [SESSIONS] [BUDGET,...] [WEIGHTS]

Sessions of `multi_key` with 2,048 tokens and one question. Entries of a KV head are ranked by attention over the prompt,
renormalised there, mean over the soft tokens (or the response's four), mean over the group, largest of seven neighbours;
the last eight entries are always retained. WEIGHTS is the folder of judge_q_N.safetensors (default: the model's). Besides
the weights of each number of tokens the script ranks by parts of those with 64, four tokens each.
"""

import pathlib
import sys

import numpy as np

import tiny

WINDOW, KERNEL, RESPONSE = 8, 7, 4


def ranked(model, cache, prompt, queries):
    """Scores [layers][KV heads][prompt - WINDOW] of queries by layer, [rows][heads][dim], for cached tokens."""
    out = np.empty((model.layers, model.kv_heads, prompt - WINDOW), np.float32)
    for layer in range(model.layers):
        for head in range(model.kv_heads):
            q = queries[layer][:, head * model.group:(head + 1) * model.group]
            seen = tiny.softmax(np.einsum("rgd,td->rgt", q, cache.k[layer, :prompt, head]) / np.sqrt(model.dim))
            mean = seen.mean((0, 1))[:prompt - WINDOW]
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


def main():
    tool, folder = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 16
    budgets = [int(b) for b in (sys.argv[4] if len(sys.argv) > 4 else "20,41,102").split(",")]
    weights = pathlib.Path(sys.argv[5] if len(sys.argv) > 5 else folder)
    model, rates = tiny.Model(folder), {}
    files = {n: weights / f"judge_q_{n}.safetensors" for n in (4, 8, 16, 32, 64)}
    soft = {n: tiny.tensors(path)["soft_tokens"] for n, path in files.items() if path.exists()}
    for ids, spans in tiny.sessions(tool, "multi_key", 2048, 1, count):
        begin, end, _ = spans[-1]
        cache = tiny.Cache(model, begin + 64)
        model.run(model.embed(ids[:begin]), cache)
        wanted = ranked(model, cache, begin, model.run(model.embed(ids[begin:begin + RESPONSE]), cache, store=False)[1])
        rows = {n: model.run(x, cache, store=False)[1] for n, x in soft.items()}
        by = {f"{n} tokens": ranked(model, cache, begin, q) for n, q in rows.items()}
        for first in range(0, 64, 4):
            by[f"64 tokens, {first} to {first + 3}"] = ranked(model, cache, begin, [q[first:first + 4] for q in rows[64]])
        for name, scores in by.items():
            rates.setdefault(name, []).append([hit_rate(scores, wanted, budget) for budget in budgets])
    print(f"hit rates, %, of {count} contexts, +- 1.96 standard errors; retained entries: {', '.join(map(str, budgets))}")
    for name, values in rates.items():
        mean, error = 100 * np.mean(values, 0), 196 * np.std(values, 0, ddof=1) / np.sqrt(len(values))
        print(f"{name:22}", "  ".join(f"{m:5.1f} +- {e:.1f}" for m, e in zip(mean, error)))


if __name__ == "__main__":
    main()
