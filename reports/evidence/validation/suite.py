#!/usr/bin/env python3
"""Prints the tables "over the suite" of the validation reports and of the README, from the recordings:

  reports/evidence/validation/suite.py build/dev/bin/kvtwin              over the suite, by groups
  reports/evidence/validation/suite.py build/dev/bin/kvtwin --scenarios  one by one

The suite is that of scenarios/suites/validation, on each GPU of GPUS. Medians are over the absolute differences of
scenarios; the worst scenario follows in brackets, with its sign. Steps and copies are pooled over all scenarios of a
group. A scenario is dense if it names neither scorer, retrieval nor precision."""

import csv
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
GPUS = ["h200", "h100"]  # folders of tests/golden
FIGURES = ["throughput", "tpot mean", "ttft mean", "ttft p99", "preemptions", "evictions", "prefix reuse",
           "peak pages", "mean pages", "tail fragmentation", "group fragmentation", "reclaimed", "exposed transfers"]


def name_of(path):
    return os.path.basename(path)[:-len(".textproto")]


def validated(kvtwin, gpu):
    """[(GPU, group, scenario of validation.json, its rows of --details)]"""
    paths = [path for path in sorted(glob.glob(f"{ROOT}/scenarios/suites/validation/*.textproto"))
             if os.path.isdir(f"{ROOT}/tests/golden/{gpu}/{name_of(path)}")]
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run([kvtwin, "validate", *paths, f"--recorded={ROOT}/tests/golden/{gpu}",
                               f"--details={scratch}/details.csv", "--format=json", "--quiet"],
                              stdout=subprocess.PIPE, check=False)
        if done.returncode > 1:  # 1: beyond a limit
            sys.exit(done.returncode)
        with open(f"{scratch}/details.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    dense = {name_of(path) for path in paths
             if not re.search(r"scorer:|retrieval:|precision:", open(path, encoding="utf-8").read())}
    out = []
    for one in json.loads(done.stdout)["scenarios"]:
        name = one["scenario"]
        group = "dense" if name in dense else "methods"
        out.append((gpu, group, one, [row for row in rows if row["scenario"] == name]))
    return out


def percentile(values, fraction):
    values = sorted(values)
    return values[min(len(values) - 1, int(fraction * len(values)))]


def rows_of(suite, steps):
    """Steps or, if not, copies."""
    return [row for *_, rows in suite for row in rows if (row["kind"] == "step") == steps and float(row["measured_us"]) > 0]


def open_loop(suite, steps):
    errors = [abs(float(row["predicted_us"]) / float(row["measured_us"]) - 1) * 100 for row in rows_of(suite, steps)]
    return f"{statistics.median(errors):.2f} / {percentile(errors, .95):.1f} ({len(errors)})" if errors else "-"


def ranges(suite):
    inside, widths = 0, []
    rows = rows_of(suite, True)
    for row in rows:
        low, high = float(row["low_us"]), float(row["high_us"])
        inside += low <= float(row["measured_us"]) <= high
        widths.append((high - low) / 2 / float(row["predicted_us"]) * 100)
    return f"{inside / len(rows) * 100:.1f} of +-{statistics.median(widths):.1f}"


def copies_in_sum(suite):
    rows = rows_of(suite, False)
    if not rows:
        return "-"
    predicted, measured = (sum(float(row[name]) for row in rows) for name in ("predicted_us", "measured_us"))
    return f"{(predicted / measured - 1) * 100:+.1f}"


def closed_loop(suite, name):
    found = [figure["difference"] for _, _, one, _ in suite for figure in one["figures"]
             if figure["name"] == name and figure["difference"] is not None]
    return f"{statistics.median(map(abs, found)):.1f} ({max(found, key=abs):+.1f})" if found else "-"


def print_scenarios(suite):
    """Differences in percent; bold: beyond the limit."""
    shown = ["throughput", "tpot mean", "ttft mean", "preemptions", "evictions"]
    print("| GPU | scenario | steps | median / P95 | in range | " + " | ".join(shown) + " |\n|---|---|---|---|---" + "|---" * len(shown) + "|")
    for gpu, _, one, rows in suite:
        figures = {figure["name"]: figure for figure in one["figures"]}
        row = []
        for name in shown:
            figure = figures.get(name)
            if not figure or figure["difference"] is None or figure["real"] == 0:
                row.append("")
                continue
            value = f"{figure['difference']:+.1f}"
            row.append(value if abs(figure["difference"]) <= figure["tolerance"] else f"**{value}**")
        steps = one["open_loop"]["steps"]
        print(f"| {gpu.upper()} | `{one['scenario']}` | {steps['count']:,} | {steps['median_percent']:.1f} / {steps['p95_percent']:.1f} | "
              f"{ranges([(gpu, '', one, rows)]).split()[0]} | " + " | ".join(row) + " |")


def main():
    suite = [one for gpu in GPUS for one in validated(sys.argv[1], gpu)]
    if "--scenarios" in sys.argv:
        return print_scenarios(suite)
    groups = {"all": suite} | {name: [one for one in suite if name in one[:2]] for name in ("dense", "methods", *GPUS)}
    runs = {name: [run for _, _, one, _ in part for run in one["replayed"]] for name, part in groups.items()}
    lines = [("scenarios", lambda name: len(groups[name])),
             ("runs that decide the same, of", lambda name: f"{sum(r['same'] for r in runs[name])} of {len(runs[name])}"),
             ("step time, median / P95 error, % (steps)", lambda name: open_loop(groups[name], True)),
             ("% of steps in their range, of a half-width of %", lambda name: ranges(groups[name])),
             ("copies, median / P95 error, % (copies)", lambda name: open_loop(groups[name], False)),
             ("copies in sum, %", lambda name: copies_in_sum(groups[name])),
             *[(figure, lambda name, figure=figure: closed_loop(groups[name], figure)) for figure in FIGURES],
             ("within every limit", lambda name: sum(one["good"] for _, _, one, _ in groups[name]))]
    print("| | " + " | ".join(groups) + " |\n|---" + "|---" * len(groups) + "|")
    for title, value in lines:
        print(f"| {title} | " + " | ".join(str(value(name)) for name in groups) + " |")


main()
