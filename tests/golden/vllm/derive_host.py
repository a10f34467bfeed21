#!/usr/bin/env python3
"""Derives a machine's host time per step from the first 30 requests of a real vLLM run.

  tests/golden/vllm/derive_host.py build/dev/scenarios/kvtwin scenarios/vllm_rtx4090_llama8b.textproto \
      tests/golden/vllm/rtx4090/requests.jsonl

Three numbers describe the host (traces/proto/scenario.proto, Cost): what a step that is replayed as a graph
costs beside the kernel tables, what a larger step costs, and what the very first step costs more. They are
those that bring the simulated first and last tokens of requests 0..29 nearest to the measured ones (least
sum of absolute differences, each as a share of the measured time since queueing); requests 30.. are not
looked at. The search is a fixed pattern search, so that it gives the same numbers wherever it runs.
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
            total += abs((s[stamp] - s["queued_ts"]) - measured) / measured
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

    best = [0, 0, 0]
    steps = [2_000_000, 4_000_000, 200_000_000]
    while steps[GRAPH] >= 20_000:
        moved = False
        for axis in range(3):
            for sign in (1, -1):
                trial = list(best)
                trial[axis] += sign * steps[axis]
                if trial[FIRST] >= 0 and score(trial) < score(best):
                    best, moved = trial, True
        if not moved:
            steps = [step // 2 for step in steps]
    print(f"host_ns_per_step: {best[GRAPH]} host_eager_ns: {best[EAGER]} first_step_host_ns: {best[FIRST]}")
    print(f"mean distance on the first {CALIBRATED_ON} requests: {100 * score(best):.2f} % "
          f"(without: {100 * score([0, 0, 0]):.2f} %), {len(seen)} runs", file=sys.stderr)


main()
