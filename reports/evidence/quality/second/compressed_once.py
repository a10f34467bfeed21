"""A document is compressed once, before its questions are known, with KVzip's scores.

  python3 compressed_once.py build/dev/bin/kvtwin models/tiny/tasks-6x256 [SESSIONS] [TASK,...] [PROCESSES]

Documents of 384 tokens of `multi_key` and `variable_tracking`, six questions each; no question is visible when entries are
dropped. KVzip: the document is passed again behind itself, after the request of the task `repeat`; an entry's score is the
largest attention that this pass gives it. The loss of the repeated tokens says how well the model repeats. `questions`
scores by the attention of all six questions and their answers instead: a bound that knows them. KeyDiff is a row that the
engine has too; there later questions also see the turns before them. The last eight entries stay. Levels: every head
retains as many entries (uniform), or the best of a layer or of all layers are retained. Heads that share a table, ordered by what
they retain, share the largest count among them, for the same bytes in total. `as engine` is the rule of
scenarios/quality/kvzip.textproto, whose answers equal the CPU engine's.
"""

import concurrent.futures
import functools
import math
import sys

import numpy as np

import tiny

DOCUMENT, WINDOW = 384, 8
REPEAT = [3, 11, 4]  # user all, assistant: the request of the task
FRAME = 3            # tokens of a prompt before a document's text
QUESTION = 3


def attended(model, cache, ids, n, visible=None, keys=None):
    """Largest attention that rows `ids` behind the first n entries of the cache give each of `keys` (default: all of
    them), where the softmax includes these and the rows; [layers][KV heads][keys]; the rows' logits. `visible` as in
    Model.run."""
    own = tiny.Cache(model, n + len(ids))
    own.k[:, :n], own.v[:, :n], own.n = cache.k[:, :n], cache.v[:, :n], n
    logits, queries = model.run(model.embed(ids), own, visible)
    later = np.where(np.tril(np.ones((len(ids), len(ids)), bool)), 0, -np.inf)
    keys = np.arange(n) if keys is None else keys
    read, count = np.concatenate([keys, np.arange(n, own.n)]), len(keys)
    out = np.empty((model.layers, model.kv_heads, count), np.float32)
    for layer in range(model.layers):
        for head in range(model.kv_heads):
            q = queries[layer][:, head * model.group:(head + 1) * model.group]
            scores = np.einsum("rgd,td->grt", q, own.k[layer, read, head]) / np.sqrt(model.dim)
            scores[:, :, count:] += later
            out[layer, head] = tiny.softmax(scores)[:, :, :count].max((0, 1))
    return out, logits


def as_engine(model, cache, ids, spans, entries):
    """Right answers as `scenarios/quality/kvzip.textproto` computes them with --drop-turns: sinks and window are retained, a
    ratio of the others across all heads, and the end of the document is ranked once more with each question, which is a
    chunk of its own."""
    n, right, ratio = DOCUMENT, [], round(entries / (DOCUMENT + QUESTION), 6)

    def best(scores, tokens):
        others = tokens - FRAME - WINDOW
        fraction = min(1.0, max(0.0, (ratio * (tokens - FRAME) - WINDOW) / others))
        flat = np.zeros(scores.size, bool)
        flat[np.argsort(-scores.ravel(), kind="stable")[:math.ceil(fraction * scores.size - 1e-9)]] = True
        return flat.reshape(scores.shape)

    mask = np.ones((model.layers, model.kv_heads, n + QUESTION), bool)
    scores, _ = attended(model, cache, np.concatenate([REPEAT, ids[FRAME:n]]), n)
    mask[..., FRAME:n - WINDOW] = best(scores[..., FRAME:n - WINDOW], n)
    for begin, end, _ in spans:
        cache.n = n
        model.run(model.embed(ids[begin - QUESTION:begin]), cache, lambda layer, head, q: np.flatnonzero(mask[layer, head, :n]))
        again, left = np.arange(n - WINDOW, n), mask.copy()
        scores, _ = attended(model, cache, np.concatenate([REPEAT, ids[again], ids[begin - QUESTION:begin]]), n + QUESTION,
                             lambda layer, head, q: np.flatnonzero(mask[layer, head]),
                             np.concatenate([np.arange(FRAME), again, np.arange(n, n + QUESTION)]))
        left[..., n - WINDOW:n - WINDOW + QUESTION] = best(scores[..., FRAME:FRAME + QUESTION], n + QUESTION)
        got, _ = model.run(model.embed(ids[begin:end - 1]), cache, lambda layer, head, q: np.flatnonzero(left[layer, head]))
        right.append(tiny.right(got, ids[begin + 1:end]))
    return right


def retained(scores, level, entries, group=1):
    """Entries by head, bool [layers][KV heads][n], `entries` per head on average (the last WINDOW included)."""
    layers, heads, n = scores.shape
    free, out = n - WINDOW, np.zeros(scores.shape, bool)
    out[..., free:] = True
    flat = scores[..., :free].reshape(layers * heads, free)
    order = np.argsort(-flat, 1, kind="stable")
    total = (entries - WINDOW) * layers * heads
    if level == "uniform":
        counts = np.full(layers * heads, entries - WINDOW)
    else:
        parts = np.arange(layers * heads).reshape(layers, heads) if level == "per layer" else np.arange(layers * heads)[None]
        counts = np.zeros(layers * heads, int)
        for part in parts:
            best = np.argsort(-flat[part].ravel(), kind="stable")[:total // len(parts)]
            counts[part] = np.bincount(best // free, minlength=len(part))
    if group > 1:
        counts = grouped(counts, group, total)
    for head, count in enumerate(counts):
        out.reshape(layers * heads, n)[head, order[head, :count]] = True
    return out


def grouped(counts, group, total):
    """Heads with similar counts share the largest, scaled so that all together retain at most `total`."""
    by = np.argsort(-counts, kind="stable").reshape(-1, group)
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        shared = np.floor(middle * counts[by].max(1)).astype(int)
        low, high = (middle, high) if shared.sum() * group <= total else (low, middle)
    out = np.empty_like(counts)
    out[by] = np.floor(low * counts[by].max(1)).astype(int)[:, None]
    return out


def cells():
    for entries in (32, 64):
        for level, group in (("uniform", 1), ("per layer", 1), ("across layers", 1), ("across layers", 4), ("across layers", 8)):
            yield level, group, entries


def document(model, ids, spans):
    """One document: the loss of a repeated token, right answers and the fraction retained by cell."""
    n = spans[0][0] - 3
    cache, text = tiny.Cache(model, n + 8), ids[FRAME:n]
    model.run(model.embed(ids[:n]), cache)
    repeats, logits = attended(model, cache, np.concatenate([REPEAT, text]), n)
    loss = tiny.loss(logits[len(REPEAT) - 1:-1], text) / len(text)
    asked = np.max([attended(model, cache, ids[begin - 3:end], n)[0] for begin, end, _ in spans], 0)
    keep = {("full", "", 1, DOCUMENT): np.ones(repeats.shape, bool)}
    keep |= {("KVzip", *cell): retained(repeats, cell[0], cell[2], cell[1]) for cell in cells()}
    keep["questions", "uniform", 1, 32] = retained(asked, "uniform", 32)
    keys = cache.k[:, :n].transpose(0, 2, 1, 3)
    away = -(tiny.unit(keys) * tiny.unit(tiny.unit(keys).mean(2, keepdims=True))).sum(-1)
    keep |= {("KeyDiff", "uniform", 1, entries): retained(away, "uniform", entries) for entries in (32, 64)}
    right = {}
    for cell, mask in keep.items():
        for begin, end, _ in spans:
            cache.n = n
            got, _ = model.run(model.embed(ids[begin - 3:end - 1]), cache,
                               visible=lambda layer, head, q: np.flatnonzero(mask[layer, head]))
            right.setdefault(cell, []).append(tiny.right(got[3:], ids[begin + 1:end]))
    for entries in (32, 64):
        cell = "as engine", "across layers", 1, entries
        keep[cell], right[cell] = np.full(1, np.nan), as_engine(model, cache, ids, spans, entries)
    exact = bool((logits[len(REPEAT) - 1:-1].argmax(-1) == text).all())
    return loss, exact, right, {cell: mask.mean() for cell, mask in keep.items()}


def say(task, done):
    losses, exact, right, fraction = zip(*done)
    print(f"{task}: loss of a repeated token {np.mean(losses):.2f}, {sum(exact)} of {len(done)} documents repeated exactly",
          flush=True)
    for cell in right[0]:
        name, level, group, entries = cell
        answers = [answer for one in right for answer in one[cell]]
        kept = 100 * np.mean([one[cell] for one in fraction])
        of = "" if np.isnan(kept) else f" ({kept:4.1f} %)"
        print(f"  {name:9} {level:13} {group} heads a table, {entries:3} entries{of}: "
              f"{tiny.wilson(sum(answers), len(answers))} %", flush=True)


def main():
    tool, folder = sys.argv[1:3]
    given = dict(enumerate(sys.argv))
    count, tasks = int(given.get(3, 42)), given.get(4, "multi_key,variable_tracking")
    with concurrent.futures.ProcessPoolExecutor(int(given.get(5, 1))) as pool:
        for task in tasks.split(","):
            asked, done = tiny.sessions(tool, task, DOCUMENT + 6 * 7, 6, count), []
            for one in pool.map(functools.partial(document, tiny.Model(folder)), *zip(*asked)):
                done.append(one)
                if len(done) % 12 == 0 or len(done) == count:  # a run that is cut off has said what it has
                    say(task, done)


if __name__ == "__main__":
    main()
