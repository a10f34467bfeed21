"""TriAxialKV's tags, recomputed: which tags in 2 bits cost answers of newest_result?

  python3 triaxial.py build/dev/bin/kvtwin models/tiny/tasks-6x256 [SESSIONS]

Sessions of 1,024 tokens with four questions. The KV of each prompt is computed exactly and then stored: tokens of the
named tags in 4 bits, the others in 2 (groups of 32, fp16 scale and zero; 2-bit keys by channel over 32 such tokens in
order, the rest of fewer than 32 in 4 bits). The answer is decoded from what is stored. Sets that no calibration chooses
are asked too: they tell which tags matter.
"""

import sys

import numpy as np

import tiny

GROUP = 32
USER, ASSISTANT, REQUEST, RESULT = 3, 4, 5, 6
KINDS = {USER: "user", ASSISTANT: "assistant", REQUEST: "tool_call", RESULT: "obs"}
SETS = {"all in 2 bits": (), "turn_m1 user": ("turn_m1 user",), "turn_m1 obs": ("turn_m1 obs",),
        "turn_m1 user and obs": ("turn_m1 user", "turn_m1 obs"),
        "older user, turn_m1 obs": ("older user", "turn_m1 obs"),
        "older user, turn_m1 user and obs": ("older user", "turn_m1 user", "turn_m1 obs"),
        "older obs, turn_m1 obs": ("older obs", "turn_m1 obs"),
        "older obs alone": ("older obs",), "all in 4 bits": None}


def tags(ids):
    """The tag of every token of a prompt: its turn before the last and what it is."""
    kind, turn, kinds, turns = "inst", 0, [], []
    for token in ids:
        if token in KINDS:
            kind, turn = KINDS[token], turn + (token == USER)
        kinds.append(kind)
        turns.append(turn)
    names = ["current", "turn_m1", "turn_m2"]
    return [f"{names[turn - t] if turn - t < 3 else 'older'} {k}" for t, k in zip(turns, kinds)]


def stored(x, bits):
    """x [..., GROUP] as read back: codes of a group with its fp16 minimum and step."""
    low = x.min(-1, keepdims=True).astype(np.float16).astype(np.float32)
    step = ((x.max(-1, keepdims=True) - low) / (2 ** bits - 1)).astype(np.float16).astype(np.float32)
    codes = np.clip(np.round((x - low) / np.where(step > 0, step, 1)), 0, 2 ** bits - 1)
    return codes * step + low


def by_token(x, bits):
    """x [T][heads][d]: groups of channels of one token."""
    return stored(x.reshape(*x.shape[:-1], -1, GROUP), bits).reshape(x.shape)


def quantised(cache, four):
    """A copy of the cache; `four` [T]: tokens in 4 bits."""
    out = cache.copy()
    low = np.flatnonzero(~four)
    low = low[:len(low) // GROUP * GROUP]
    for layer in range(out.k.shape[0]):
        k, v = cache.k[layer, :cache.n], cache.v[layer, :cache.n]
        out.k[layer, :cache.n], out.v[layer, :cache.n] = by_token(k, 4), by_token(v, 4)
        if not len(low):
            continue
        out.v[layer, low] = by_token(v[low], 2)
        blocks = k[low].reshape(-1, GROUP, *k.shape[1:]).transpose(0, 2, 3, 1)
        out.k[layer, low] = stored(blocks, 2).transpose(0, 3, 1, 2).reshape(len(low), *k.shape[1:])
    return out


def main():
    tool, folder = sys.argv[1:3]
    model, count = tiny.Model(folder), int(sys.argv[3]) if len(sys.argv) > 3 else 21
    right, four_fraction = {name: [] for name in ["exact", *SETS]}, {name: [] for name in SETS}
    for ids, spans in tiny.sessions(tool, "newest_result", 1024, 4, count):
        whole = tiny.Cache(model, len(ids))
        logits, _ = model.run(model.embed(ids), whole)
        for begin, end, scored in spans:
            if not scored:
                continue
            right["exact"].append(tiny.right(logits[begin:end - 1], ids[begin + 1:end]))
            prompt = whole.copy()
            prompt.n = begin
            own = tags(ids[:begin])
            for name, chosen in SETS.items():
                four = np.array([chosen is None or tag in chosen for tag in own])
                got, _ = model.run(model.embed(ids[begin:end - 1]), quantised(prompt, four))
                right[name].append(tiny.right(got, ids[begin + 1:end]))
                four_fraction[name].append(four.mean())
    for name, answers in right.items():
        gained, lost, p = tiny.mcnemar(answers, right["all in 2 bits"])
        bits = 2 + 2 * np.mean(four_fraction[name]) if name in SETS else 32
        print(f"{name:33} {bits:5.2f} bits  {tiny.wilson(sum(answers), len(answers))} %, beside 2 bits: {gained}, {lost}, {p:.2g}")


if __name__ == "__main__":
    main()
