"""IntentKV's memory and residual where a goal is refined, recomputed question by question.

  python3 intentkv.py build/dev/bin/kvtwin models/tiny/tasks-6x256 [TASK] [SESSIONS] [ENTRIES,...] [TURNS] [RESIDUAL]

Sessions of 384 tokens with 12 questions. At every prompt's end the rule ranks what the session still has, with the mean
query of the question (three tokens) or a memory of such queries, and only ENTRIES tokens stay, in all heads. Two sinks
do not count, the question does. Tokens of a page that is not full are computed again by the next prompt, as a prefix
cache of whole pages does. TURNS are `kept`, or `dropped`: a turn's question and answer leave the context when it ends, so
that later answers cannot come from earlier ones (`kvtwin evaluate --drop-turns`). RESIDUAL is a file of the trained head (default: the shipped one).

  query   the newest question alone            unit   memory of unit queries, gamma 0.9
  max     best over past queries, gamma 0.9    residual   rule and head, raw queries (as the shipped head was trained)

An answer's values stand in the document and in the answers of earlier turns that asked for the same: which of them are
retained when it is asked?
"""

import math
import pathlib
import sys

import numpy as np

import tiny

SINKS, SPAN, GAMMA = 2, 3, 0.9
ASSISTANT = 4


class Residual:
    """f(p) of docs/design/methods/intentkv.md#scorer, equations 4 to 6."""

    def __init__(self, path, heads=4):
        self.w = {name.removeprefix("residual."): value for name, value in tiny.tensors(path).items()}
        self.heads = heads

    def __call__(self, keys, memory, span):
        """keys [T][d], memory [d], span [n][d]: f [T], times the gain."""
        w, n = self.w, self.heads
        x = np.concatenate([keys, np.broadcast_to(memory, keys.shape), keys * memory], -1)
        split = lambda v: v.reshape(len(v), n, -1).transpose(1, 0, 2)
        q, k, v = (split(a @ w["w" + c].T + w["b" + c]) for a, c in ((x, "q"), (span, "k"), (span, "v")))
        c = tiny.softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])) @ v
        c = c.transpose(1, 0, 2).reshape(len(keys), -1) @ w["wo"].T + w["bo"]
        h = np.concatenate([x, c], -1) @ w["w1"].T + w["b1"]
        h = 0.5 * h * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
        return np.clip(w["gain"][0], 0, 1) * (h @ w["w2"] + w["b2"][0])


def rule(memory, keys):
    """memory [layers][heads][d], keys [layers][T][KV heads][d]: mean attention probability times T."""
    group = memory.shape[1] // keys.shape[2]
    k = keys.repeat(group, axis=2).transpose(0, 2, 1, 3)
    scores = np.einsum("ljd,ljtd->ljt", memory, k) / math.sqrt(memory.shape[-1])
    return tiny.softmax(scores).mean((0, 1)) * keys.shape[1]


class Memory:
    def __init__(self, mode):
        self.mode, self.turns, self.sum = mode, [], None

    def add(self, query):
        self.turns.append(tiny.unit(query))
        if self.mode == "query":
            self.sum = self.turns[-1]
        else:
            newest = query if self.mode == "residual" else self.turns[-1]
            self.sum = tiny.unit(newest if self.sum is None else GAMMA * self.sum + newest)

    def scores(self, keys, span, head):
        if self.mode == "max":
            return np.max([GAMMA ** age * rule(turn, keys) for age, turn in enumerate(reversed(self.turns))], 0)
        out = rule(self.sum, keys)
        if self.mode == "residual":
            out += head(keys.mean((0, 2)), self.sum.mean((0, 1)), span.mean((0, 2)))
        return out


def contexts(ids, spans, drop_turns):
    """[(prompt, output, scored)] of a session, places in ids. Each prompt continues the one before; if turns are dropped,
    without the question and answer of the turn that has ended (requests of tools and their results stay)."""
    out, history, last = [], [], 0
    for begin, end, scored in spans:
        prompt, output = history + list(range(last, begin)), list(range(begin, end))
        out.append((prompt, output, scored))
        history = prompt[:-SPAN] if drop_turns and ids[begin] == ASSISTANT else prompt + output
        last = end
    return out


def sources(tokens, answer):
    """Where an answer's values stand in its prompt: in the document behind their key, and in answers of turns that asked
    for the same key. Both [places][values]."""
    key, values = tokens[-1], list(answer[1:-1])
    found = [at for at in range(2, len(tokens) - 1) if list(tokens[at:at + len(values)]) == values]
    places = lambda behind: np.array([np.arange(at, at + len(values)) for at in found if list(tokens[at - len(behind):at]) == behind])
    return places([key]), places([key, ASSISTANT])


def ask(model, ids, spans, mode, entries, head, notes=None, drop_turns=False):
    """Right answers of a session's scored questions. Appends to `notes` whether the answer is right, and whether its values
    are retained in the document and in an earlier answer, at the prompt's end."""
    cache, live, memory, out = tiny.Cache(model, len(ids)), np.zeros(len(ids), bool), Memory(mode), []
    cached = []  # the tokens whose KV the cache has, places in ids
    for prompt, output, scored in contexts(ids, spans, drop_turns):
        end, tokens = len(prompt), ids[prompt]
        common = next((i for i, pair in enumerate(zip(cached, prompt)) if pair[0] != pair[1]), min(len(cached), end))
        first = common // tiny.PAGE * tiny.PAGE
        live[first:], cache.n = False, first
        before = np.flatnonzero(live[:first])
        logits, queries = model.run(model.embed(tokens[first:]), cache, visible=lambda layer, kv_head, q: before)
        live[first:end] = True
        memory.add(np.stack([q[-SPAN:].mean(0) for q in queries]))
        held = np.flatnonzero(live[:end])
        forced = (held < SINKS) | (held >= end - SPAN)
        candidates = held[~forced]
        if len(candidates) > entries - SPAN:
            scores = memory.scores(cache.k[:, candidates], cache.k[:, end - SPAN:end], head)
            best = np.lexsort((candidates, scores))[::-1][:entries - SPAN]
            live[:end] = False
            live[held[forced]] = live[candidates[best]] = True
        seen = np.flatnonzero(live[:end])
        got, _ = model.run(model.embed(ids[output[:-1]]), cache, visible=lambda layer, kv_head, q: seen)
        live[end:cache.n] = True
        cached = prompt + output[:-1]
        if scored:
            out.append(tiny.right(got, ids[output[1:]]))
            if notes is not None:
                notes.append((out[-1], *(len(places) > 0 and live[places].all(1).any() for places in sources(tokens, ids[output]))))
    return out


def main():
    tool, folder = sys.argv[1:3]
    given = dict(enumerate(sys.argv))
    task, count = given.get(3, "refined_goal"), int(given.get(4, 32))
    head = Residual(given.get(7, pathlib.Path(folder) / "intent_residual.safetensors"))
    model, asked = tiny.Model(folder), tiny.sessions(tool, task, 384, 12, count)
    for entries in (int(e) for e in given.get(5, "64").split(",")):
        right, notes = {}, {}
        for mode in ("query", "unit", "max", "residual"):
            notes[mode] = []
            right[mode] = [one for ids, spans in asked for one in ask(model, ids, spans, mode, entries, head, notes[mode], given.get(6) == "dropped")]
        for mode, answers in right.items():
            pairs = " and ".join(f"{base} %d, %d, %.2g" % tiny.mcnemar(answers, right[base]) for base in ("query", "unit"))
            print(f"{task}, {entries} entries, {mode:8}: {tiny.wilson(sum(answers), len(answers))} %; gained, lost, p beside {pairs}; "
                  f"{''.join(str(int(a)) for a in answers[:24])}")
            correct, fact, turn = np.array(notes[mode], bool).T
            for name, has in (("in the document", fact), ("in an earlier answer", turn), ("nowhere", ~fact & ~turn)):
                print(f"    values retained {name}: {tiny.wilson(has.sum(), len(has))} % of the questions, of which right "
                      f"{tiny.wilson((correct & has).sum(), has.sum())} %", flush=True)


if __name__ == "__main__":
    main()
