"""The tiny models in NumPy, for computations that must not depend on the engines: nothing of engine/ or kernels/ runs.

Weights are those of models/tiny, questions those of `kvtwin trace make-task --arrays` (the ones that `kvtwin evaluate`
asks). Decoding is forced: an answer is right if every token of it is the argmax of its predecessor's logits.

  python3 tiny.py build/dev/bin/kvtwin models/tiny/tasks-6x256 multi_key 384 4 1   # exact answers with all KV
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

PAGE = 16


def tensors(path):
    """All tensors of a safetensors file, in fp32."""
    raw = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    out = {}
    for name, entry in json.loads(raw[8:begin]).items():
        if name == "__metadata__":
            continue
        first, last = (begin + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw[first:last], np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw[first:last], np.float32)
        out[name] = values.reshape(entry["shape"])
    return out


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


class Cache:
    """Rotated keys and values of one session: [layers][tokens][KV heads][head_dim]. `n` tokens are valid."""

    def __init__(self, model, tokens):
        self.k, self.v = (np.zeros((model.layers, tokens, model.kv_heads, model.dim), np.float32) for _ in range(2))
        self.n = 0

    def copy(self):
        out = object.__new__(Cache)
        out.k, out.v, out.n = self.k.copy(), self.v.copy(), self.n
        return out


class Model:
    def __init__(self, folder):
        shape = json.loads((pathlib.Path(folder) / "config.json").read_text())
        self.layers, self.heads = shape["num_hidden_layers"], shape["num_attention_heads"]
        self.kv_heads, self.dim = shape["num_key_value_heads"], shape["head_dim"]
        self.group, self.eps = self.heads // self.kv_heads, shape["rms_norm_eps"]
        self.w = tensors(pathlib.Path(folder) / "model.safetensors")
        self.inverse = shape["rope_theta"] ** (-np.arange(0, self.dim, 2) / self.dim)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name]

    def rotate(self, x, positions):
        angle = np.asarray(positions)[:, None] * self.inverse
        cos, sin = (np.concatenate([f(angle)] * 2, -1)[:, None].astype(np.float32) for f in (np.cos, np.sin))
        half = self.dim // 2
        return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin

    def embed(self, ids):
        return self.w["model.embed_tokens.weight"][np.asarray(ids, np.int64)]

    def run(self, x, cache, visible=None, read=None, store=True):
        """Passes rows of embeddings at positions cache.n, cache.n + 1, ...; returns logits and queries by layer.

        Rows attend to cached tokens and causally to each other. visible(layer, head, q): indices of the cached tokens
        that a KV head sees, for queries q [rows][group][dim]. read(layer, head): other keys and values of the cache."""
        rows, first = len(x), cache.n
        positions = np.arange(first, first + rows)
        causal = np.where(np.tril(np.ones((rows, rows), bool)), 0, -np.inf).astype(np.float32)
        queries = []
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            h = self.norm(x, name + "input_layernorm.weight")
            q, k, v = ((h @ self.w[f"{name}self_attn.{part}_proj.weight"].T).reshape(rows, -1, self.dim) for part in "qkv")
            if name + "self_attn.q_norm.weight" in self.w:
                q, k = self.norm(q, name + "self_attn.q_norm.weight"), self.norm(k, name + "self_attn.k_norm.weight")
            q, k = self.rotate(q, positions), self.rotate(k, positions)
            queries.append(q)
            out = np.empty((rows, self.heads, self.dim), np.float32)
            for head in range(self.kv_heads):
                own = slice(head * self.group, (head + 1) * self.group)
                old_k, old_v = (cache.k[layer, :first, head], cache.v[layer, :first, head]) if read is None else read(layer, head)
                if visible is not None:
                    seen = visible(layer, head, q[:, own])
                    old_k, old_v = old_k[seen], old_v[seen]
                keys, values = np.concatenate([old_k, k[:, head]]), np.concatenate([old_v, v[:, head]])
                for j in range(own.start, own.stop):
                    scores = q[:, j] @ keys.T / math.sqrt(self.dim)
                    scores[:, len(old_k):] += causal
                    out[:, j] = softmax(scores) @ values
            cache.k[layer, first:first + rows], cache.v[layer, first:first + rows] = k, v
            x = x + out.reshape(rows, -1) @ self.w[name + "self_attn.o_proj.weight"].T
            h = self.norm(x, name + "post_attention_layernorm.weight")
            gate = h @ self.w[name + "mlp.gate_proj.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ self.w[name + "mlp.up_proj.weight"].T)) @ self.w[name + "mlp.down_proj.weight"].T
        if store:
            cache.n += rows
        return self.norm(x, "model.norm.weight") @ self.w["lm_head.weight"].T, queries


def sessions(tool, task, tokens, per_session, count, split="test", seed=1):
    """[(ids, [(begin, end, scored)])]: outputs are ids[begin:end]."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([tool, "trace", "make-task", task, f"--split={split}", f"--seed={seed}", f"--sessions={count}",
                        f"--tokens={tokens}", f"--questions={per_session}", f"--arrays={folder}/a"], check=True,
                       stdout=subprocess.DEVNULL)
        ids, marks = np.load(f"{folder}/a.tokens.npy"), np.load(f"{folder}/a.scored.npy")
    out = []
    for row, mark in zip(ids, marks):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], mark, [0]])))
        spans = [(int(a), int(b), mark[a] == 2) for a, b in zip(edges[:-1], edges[1:]) if mark[a] > 0]
        end = spans[-1][1]
        out.append((row[:end], spans))
    return out


def right(logits, answer):
    """logits of the rows that predict `answer`."""
    return bool((logits.argmax(-1) == answer).all())


def loss(logits, answer):
    return float(-np.log(softmax(logits.astype(np.float64))[np.arange(len(answer)), answer]).sum())


def wilson(count, of, z=1.96):
    if of == 0:
        return "-"
    p = count / of
    centre, half = (p + z * z / 2 / of) / (1 + z * z / of), z * math.sqrt(p * (1 - p) / of + z * z / 4 / of / of) / (1 + z * z / of)
    return f"{100 * p:.1f} [{100 * max(0, centre - half):.0f} {100 * min(1, centre + half):.0f}]"


def mcnemar(ours, base):
    """(gained, lost, two-sided exact probability) of answers, question by question."""
    gained, lost = (sum(a > b for a, b in zip(x, y)) for x, y in ((ours, base), (base, ours)))
    n = gained + lost
    p = min(1.0, 2 * sum(math.comb(n, i) for i in range(min(gained, lost) + 1)) / 2 ** n) if n else 1.0
    return gained, lost, p


def main():
    tool, folder, task, tokens, per_session, count = sys.argv[1:7]
    model, correct, losses, of = Model(folder), [], 0.0, 0
    for ids, spans in sessions(tool, task, int(tokens), int(per_session), int(count)):
        logits, _ = model.run(model.embed(ids), Cache(model, len(ids)))
        for begin, end, scored in spans:
            if scored:
                correct.append(right(logits[begin:end - 1], ids[begin + 1:end]))
                losses += loss(logits[begin:end - 1], ids[begin + 1:end])
                of += end - begin - 1
    print(json.dumps({"right": sum(correct), "asked": len(correct), "tokens": of, "token_loss": losses / of,
                      "correct_by_question": "".join(str(int(c)) for c in correct)}))


if __name__ == "__main__":
    main()
