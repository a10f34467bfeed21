"""FreeKV's speculation by tau, recomputed: are answers lost, and where?

  python3 freekv.py build/dev/bin/kvtwin models/tiny/tasks-smooth-6x256 [SESSIONS] [BUDGET] [TAU,...] [WINDOW] [LONGER]

`long_list`, 2,048 tokens, four questions a session, as scenarios/studies/freekv_tau.sh asks them: pages of 16, the first
layer dense, one sink page, WINDOW tokens of window (64), the others by min-max bounds (mean over the group of softmax). A
head whose query has a cosine of at least tau with the step before reads the pages which that step chose. A page that has
just left the window was no candidate then, so only corrected heads can read it in that step; with LONGER = 1 it stays for
that step.

An item of an answer is K V1 V2. The step that reads K looks the value up, so its page is another one than that of the
step before. For each of the three steps the script counts, over the heads that give the item's page some attention
(0.2 and more of the head's, all KV visible), how often the page is among those chosen by the step itself and by the step
before, and the cosine.
"""

import sys

import numpy as np

import tiny

SINKS, NEEDS = 1, 0.2
PLACES = ("K", "V1", "V2")


class Pages:
    """Chooses pages of one session's cache for a query of one head."""

    def __init__(self, cache, group, pages, window, longer):
        self.cache, self.group, self.window, self.longer, self.count = cache, group, window, longer, pages - SINKS - window
        self.bounds = {}

    def bound(self, layer, head, page):
        known = self.bounds.get((layer, head, page))
        if known is None:
            k = self.cache.k[layer, page * tiny.PAGE:(page + 1) * tiny.PAGE, head]
            known = self.bounds[layer, head, page] = (k.max(0), k.min(0))
        return known

    def choose(self, layer, head, q):
        """q [group][dim]: the chosen pages, a set."""
        candidates = range(SINKS, self.cache.n // tiny.PAGE + 1 - self.window)
        high, low = (np.stack(x) for x in zip(*(self.bound(layer, head, page) for page in candidates)))
        u = np.maximum(q[:, None] * high, q[:, None] * low).sum(-1) / np.sqrt(q.shape[-1])
        return set(np.argsort(-tiny.softmax(u).mean(0), kind="stable")[:self.count] + SINKS)


class Reader:
    """visible() of one answer's decoding with one tau."""

    def __init__(self, pages, tau):
        self.pages, self.tau, self.before, self.corrected, self.asked = pages, tau, {}, 0, 0

    def __call__(self, layer, head, q):
        n, q = self.pages.cache.n, q[0]
        if layer == 0:
            return np.arange(n)
        fresh = self.pages.choose(layer, head, q)
        chosen, at = fresh, (layer, head)
        if at in self.before:
            old, stale = self.before[at]
            turned = (tiny.unit(q) * tiny.unit(old)).sum(-1).mean() < self.tau
            self.asked, self.corrected = self.asked + 1, self.corrected + turned
            chosen = fresh if turned else stale
        self.before[at] = q.copy(), fresh
        last = n // tiny.PAGE
        first = last + 1 - self.pages.window - (self.pages.longer if n % tiny.PAGE == 0 else 0)
        held = sorted({*range(SINKS), *chosen, *range(first, last + 1)})
        seen = (np.array(held)[:, None] * tiny.PAGE + np.arange(tiny.PAGE)).ravel()
        return seen[seen < n]


class Needs:
    """Of the heads that attend to an item's page: is it among the pages of this step and of the step before?"""

    def __init__(self):
        self.rows = {place: [] for place in PLACES}

    def look(self, pages, queries, ids, begin, end):
        cache = pages.cache
        facts = {int(key): at for at, key in reversed(list(enumerate(ids[:begin])))}  # first mention: the document
        for at in range(begin + 2, end - 1):
            place = (at - begin - 1) % 3
            page = facts[int(ids[at - place])] // tiny.PAGE
            cache.n = at
            for layer in range(1, len(queries)):
                for head in range(cache.k.shape[2]):
                    own = slice(head * pages.group, (head + 1) * pages.group)
                    q, old = queries[layer][at, own], queries[layer][at - 1, own]
                    some = tiny.softmax(q @ cache.k[layer, :at + 1, head].T / np.sqrt(q.shape[-1])).mean(0)
                    if some[page * tiny.PAGE:(page + 1) * tiny.PAGE].sum() < NEEDS:
                        continue
                    fresh, stale = pages.choose(layer, head, q), pages.choose(layer, head, old)
                    self.rows[PLACES[place]].append((page in fresh, page in stale, (tiny.unit(q) * tiny.unit(old)).sum(-1).mean()))

    def say(self):
        for place in PLACES:
            fresh, stale, cosine = np.array(self.rows[place]).reshape(-1, 3).T
            if not len(fresh):
                continue
            missed = fresh > stale
            print(f"step that reads {place}: {len(fresh)} times a head attends to the item's page; it is among the pages of the step "
                  f"itself {tiny.wilson(fresh.sum(), len(fresh))} %, of the step before {tiny.wilson(stale.sum(), len(fresh))} %; "
                  f"where only the step itself has it, tau .9 corrects {tiny.wilson((cosine[missed] < 0.9).sum(), missed.sum())} %")


def main():
    tool, folder = sys.argv[1:3]
    count, budget, window, longer = (int(sys.argv[i]) if len(sys.argv) > i else default
                                     for i, default in ((3, 12), (4, 512), (6, 64), (7, 0)))
    taus = [float(t) for t in (sys.argv[5] if len(sys.argv) > 5 else "2,0.95,0.9,0.8,0").split(",")]
    model, needs = tiny.Model(folder), Needs()
    right, corrected = {tau: [] for tau in ["full", *taus]}, {tau: [0, 0] for tau in taus}
    wrong = {tau: [0, 0] for tau in taus}  # first wrong tokens: where a page leaves the window, elsewhere
    for ids, spans in tiny.sessions(tool, "long_list", 2048, 4, count):
        cache = tiny.Cache(model, len(ids))
        logits, queries = model.run(model.embed(ids), cache)
        for begin, end, scored in spans:
            if not scored:
                continue
            right["full"].append(tiny.right(logits[begin:end - 1], ids[begin + 1:end]))
            exact = cache.copy()
            shape = model.group, budget // tiny.PAGE, window // tiny.PAGE, longer
            needs.look(Pages(exact, *shape), queries, ids, begin, end)
            for tau in taus:
                own = exact.copy()
                own.n = begin
                reader = Reader(Pages(own, *shape), tau)
                got = [model.run(model.embed(ids[at:at + 1]), own, visible=reader)[0][0] for at in range(begin, end - 1)]
                right[tau].append(tiny.right(np.array(got), ids[begin + 1:end]))
                if not right[tau][-1]:
                    first = begin + int(np.argmax(np.array(got).argmax(-1) != ids[begin + 1:end]))
                    wrong[tau][0 if first % tiny.PAGE == 0 else 1] += 1
                corrected[tau][0] += reader.corrected
                corrected[tau][1] += reader.asked
    for name, answers in right.items():
        some = ""
        if name != "full":
            at_page, elsewhere = wrong[name]
            some = (f", corrected {100 * corrected[name][0] / corrected[name][1]:.1f} %, first wrong where a page leaves the "
                    f"window {at_page}, elsewhere {elsewhere}")
        print(f"tau {name}: {tiny.wilson(sum(answers), len(answers))} %{some}   {''.join(str(int(a)) for a in answers)}")
    for tau in taus[1:]:
        print(f"tau {tau} beside tau {taus[0]}: gained, lost, p = %d, %d, %.2g" % tiny.mcnemar(right[tau], right[taus[0]]))
    needs.say()


if __name__ == "__main__":
    main()
