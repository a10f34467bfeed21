#!/usr/bin/env python3
"""Measures how a simulated scenario's TPOT depends on the position of arrivals among its steps: all arrivals but the
first are moved.

  reports/evidence/validation/moved_arrivals.py build/dev/bin/kvtwin scenarios/suites/validation/chunked_prefill.textproto

Prints one line per move, in ms. The scenario's trace must be an Azure CSV in the same folder."""

import datetime
import os
import re
import subprocess
import sys
import tempfile

MOVES_MS = [-20, -10, -5, 0, 5, 10, 20]
FORMAT = "%Y-%m-%d %H:%M:%S.%f"


def moved(lines, by_ms):
    out = lines[:2]  # header, first arrival
    for line in lines[2:]:
        time, rest = line.split(",", 1)
        # Fractions of a second have seven digits in the file, six in Python.
        at = datetime.datetime.strptime(time[:26], FORMAT) + datetime.timedelta(milliseconds=by_ms)
        out.append(f"{at.strftime(FORMAT)}0,{rest}")
    return "\n".join(out) + "\n"


def main():
    kvtwin, scenario = sys.argv[1:3]
    name = re.search(r'trace \{ path: "([^"]+)"', open(scenario).read()).group(1)
    lines = open(os.path.join(os.path.dirname(scenario), name)).read().splitlines()
    with tempfile.TemporaryDirectory() as folder:
        for by_ms in MOVES_MS:
            path = os.path.join(folder, "moved.csv")
            with open(path, "w") as file:
                file.write(moved(lines, by_ms))
            text = subprocess.run([kvtwin, "run", scenario, "--backend=sim", "--no-write", "--quiet", f"--set=trace.path={path}"],
                                  capture_output=True, text=True, check=True).stdout
            print(f"{by_ms:+4d} ms: tpot mean {re.search(r'^  tpot +([0-9.]+)', text, re.M).group(1)} ms")


if __name__ == "__main__":
    main()
