#!/usr/bin/env python3
"""Derives a machine's host time per step from the first 30 requests of a real vLLM run.

  tests/golden/vllm/derive_host.py build/dev/bin/kvtwin scenarios/suites/vllm/vllm_rtx4090_llama8b.textproto \
      tests/golden/vllm/rtx4090/requests.jsonl

Three numbers describe the host (traces/proto/scenario.proto, Cost): the time of a step that is replayed as a
graph in addition to the kernel tables, the time of a larger step (not less), and the extra time of the first
step (the difference in request 0's first token). The first two bring the simulated first and last tokens of
requests 0..29 nearest to the measured ones: they minimise the sum of absolute differences in time since
queueing, in which the errors of single steps accumulate. Requests 30.. are not used. The search is a fixed
pattern search, so that it gives the same numbers on every machine.
"""
import json
import subprocess
import sys
import tempfile

CALIBRATED_ON = 30
GRAPH, EAGER, FIRST = range(3)


def load(path):
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    return rows[:CALIBRATED_ON]


def simulate(kvtwin, scenario, numbers):
    with tempfile.TemporaryDirectory() as out:
        command = [kvtwin, "run", scenario, f"--out={out}/run", "--quiet",
                   f"--set=cost.host_ns_per_step={numbers[GRAPH]}",
                   f"--set=cost.host_eager_ns={numbers[EAGER]}",
                   f"--set=cost.first_step_host_ns={numbers[FIRST]}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return load(f"{out}/run/requests.jsonl")


def distance(real, simulated):
    total = 0.0
    for r, s in zip(real, simulated):
        for stamp in ("first_token_ts", "last_token_ts"):
            measured = r[stamp] - r["queued_ts"]
            total += abs((s[stamp] - s["queued_ts"]) - measured)
    return total / (2 * len(real))


def main():
    kvtwin, scenario, log = sys.argv[1:4]
    real = load(log)
    seen = {}

    def score(numbers):
        key = tuple(numbers)
        if key not in seen:
            seen[key] = distance(real, simulate(kvtwin, scenario, numbers))
        return seen[key]

    def with_first_step(graph, eager):
        # The first step's extra time is the remaining difference in request 0's first token.
        plain = simulate(kvtwin, scenario, [graph, eager, 0])[0]
        lacks = (real[0]["first_token_ts"] - real[0]["queued_ts"]) - (plain["first_token_ts"] - plain["queued_ts"])
        return [graph, eager, max(0, round(lacks * 1e9))]

    best = with_first_step(0, 0)
    step = 2_000_000
    while step >= 20_000:
        moved = False
        for more_graph, more_eager in ((step, step), (-step, -step), (step, 0), (-step, 0), (0, step), (0, -step)):
            graph, eager = best[GRAPH] + more_graph, best[EAGER] + more_eager
            # Launching kernels one by one takes the host at least as long as replaying a graph.
            if eager < graph:
                continue
            trial = with_first_step(graph, eager)
            if score(trial) < score(best):
                best, moved = trial, True
        if not moved:
            step //= 2
    print(f"host_ns_per_step: {best[GRAPH]} host_eager_ns: {best[EAGER]} first_step_host_ns: {best[FIRST]}")
    print(f"mean distance on the first {CALIBRATED_ON} requests: {1e3 * score(best):.1f} ms "
          f"(without: {1e3 * score([0, 0, 0]):.1f} ms), {len(seen)} runs", file=sys.stderr)


main()
