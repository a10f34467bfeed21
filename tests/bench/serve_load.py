#!/usr/bin/env python3
"""Load on kvtwin serve: throughput, and the distance of tokens' times from the simulation's.

Usage: serve_load.py KVTWIN SERVE_LOAD [STREAMS [TOKENS [ROUNDS [ENGINES [SPEED]]]]] [--no-limits]

The server simulates ENGINES engines of Llama-3.1-8B on one H200 each, at SPEED. Defaults: 1000 streams, 100
tokens, 2 rounds, 8 engines, speed 0.065. Exit status 1: a limit of the specification is missed (10,000 tokens/s, 5 ms at
the 99th percentile); with --no-limits, only if tokens are lost.
"""

import csv
import os
import re
import signal
import subprocess
import sys
import tempfile

LIMIT_TOKENS_PER_S, LIMIT_MS = 10_000, 5.0


def percentile(values, fraction):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def rows(path):
    with open(path) as file:
        next(file)
        return [tuple(int(cell) for cell in row) for row in csv.reader(file)]


def show(name, values_ns):
    ms = [value / 1e6 for value in values_ns]
    print(f"{name:34} P50 {percentile(ms, 0.5):6.3f}  P99 {percentile(ms, 0.99):6.3f}  max {max(ms):7.3f} ms")
    return percentile(ms, 0.99)


def run(kvtwin, load, streams, tokens, rounds, engines, speed, folder):
    log, received = os.path.join(folder, "sent.csv"), os.path.join(folder, "received.csv")
    server = subprocess.Popen(
        [kvtwin, "serve", "coding_agents_small", "--port=0", f"--speed={speed}", f"--token-log={log}",
         f"--set=engines.count={engines}", f"--set=hardware.gpus={engines}", "--set=limits.requests_max=1024",
         "--set=engines.routing=round_robin"], stdout=subprocess.PIPE, text=True)
    port = re.match(r"http://127\.0\.0\.1:(\d+)/v1 serves", server.stdout.readline()).group(1)
    subprocess.run([load, port, str(streams), str(tokens), str(rounds), received], check=True)
    cpu = sum(os.times()[2:4])
    server.send_signal(signal.SIGTERM)
    if server.wait(30) != 0:
        sys.exit("the server failed")
    server_cpu = sum(os.times()[2:4]) - cpu
    return rows(log), rows(received), cpu, server_cpu


def main():
    kvtwin, load = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    given = [word for word in sys.argv[3:] if word != "--no-limits"]
    streams, tokens, rounds, engines = (int(given[i]) if len(given) > i else default
                                        for i, default in enumerate((1000, 100, 2, 8)))
    speed = float(given[4]) if len(given) > 4 else 0.065
    with tempfile.TemporaryDirectory() as folder:
        sent, received, client_cpu, server_cpu = run(kvtwin, load, streams, tokens, rounds, engines, speed, folder)
    due = {(request, token): (due_ns, sent_ns) for request, token, _, due_ns, sent_ns in sent}
    arrived = {(request, token): at for request, token, at in received}
    if len(arrived) != streams * tokens * rounds or due.keys() != arrived.keys():
        sys.exit(f"{len(due)} tokens sent, {len(arrived)} received, {streams * tokens * rounds} expected")
    first, last = min(arrived.values()), max(arrived.values())
    # While all streams run: without the first and the last tenth.
    begin, end = first + (last - first) // 10, last - (last - first) // 10
    inside = sum(begin <= at < end for at in arrived.values())
    rate = inside / ((end - begin) / 1e9)
    print(f"{streams} streams, {len(arrived)} tokens in {(last - first) / 1e9:.1f} s: {rate:,.0f} tokens/s")
    print(f"{'CPU seconds':34} server {server_cpu:.1f}, client {client_cpu:.1f}")
    late = show("sent, after the simulated time", [abs(s - d) for d, s in due.values()])
    reached = show("received, after the simulated time", [abs(arrived[key] - due[key][0]) for key in due])
    show("inter-token time, received - simulated",
         [abs((arrived[r, t] - arrived[r, t - 1]) - (due[r, t][0] - due[r, t - 1][0])) for r, t in due if t > 1])
    missed = rate < LIMIT_TOKENS_PER_S or late > LIMIT_MS or reached > LIMIT_MS
    if "--no-limits" in sys.argv:
        return
    print("missed" if missed else "within", f"{LIMIT_TOKENS_PER_S:,} tokens/s and {LIMIT_MS:.0f} ms")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
