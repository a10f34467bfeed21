#!/usr/bin/env python3
"""Prints the tables "over the suite" of the validation reports and of the README, from the recordings:

  reports/evidence/validation/suite.py build/dev/bin/kvtwin              over the suite, by groups
  reports/evidence/validation/suite.py build/dev/bin/kvtwin --scenarios  one by one

Medians are over the absolute differences of scenarios; the worst scenario follows in brackets, with its sign. Steps
and copies are pooled over all scenarios of a group. A scenario is dense if it names neither scorer, retrieval nor
precision. Without external data (KVTWIN_DATA) weka_agents cannot be replayed, and validate reports it."""

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
FIGURES = ["throughput", "tpot mean", "ttft mean", "ttft p99", "preemptions", "evictions", "prefix reuse",
           "peak pages", "mean pages", "tail fragmentation", "group fragmentation", "reclaimed", "exposed transfers"]


def name_of(path):
    return os.path.basename(path)[:-len(".textproto")]


def validated(kvtwin, folder, recorded):
    """[(group, scenario of validation.json, its rows of --details)]"""
    paths = [path for path in sorted(glob.glob(f"{ROOT}/scenarios/suites/{folder}/*.textproto"))
             if os.path.isdir(f"{ROOT}/tests/golden/{recorded}/{name_of(path)}")]
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run([kvtwin, "validate", *paths, f"--recorded={ROOT}/tests/golden/{recorded}",
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
        group = "forced" if folder.endswith("forced") else "dense" if name in dense else "methods"
        out.append((group, one, [row for row in rows if row["scenario"] == name]))
    return out


def percentile(values, fraction):
    values = sorted(values)
    return values[min(len(values) - 1, int(fraction * len(values)))]


def open_loop(suite, steps):
    errors = [abs(float(row["predicted_us"]) / float(row["measured_us"]) - 1) * 100 for _, _, rows in suite
              for row in rows if (row["kind"] == "step") == steps and float(row["measured_us"]) > 0]
    return f"{statistics.median(errors):.1f} / {percentile(errors, .95):.1f} ({len(errors)})" if errors else "-"


def closed_loop(suite, name):
    found = [figure["difference"] for _, one, _ in suite for figure in one["figures"]
             if figure["name"] == name and figure["difference"] is not None]
    return f"{statistics.median(map(abs, found)):.1f} ({max(found, key=abs):+.1f})" if found else "-"


def print_scenarios(suite):
    """Differences in percent of the real runs' mean, with their spread in brackets; bold beyond the limit, with a star
    if the real runs differ from each other by as much."""
    shown = ["throughput", "tpot mean", "ttft mean", "ttft p99", "preemptions", "evictions", "exposed transfers"]
    print("| scenario | real runs | step time, median / P95 | " + " | ".join(shown) + " |\n|---|---|---" + "|---" * len(shown) + "|")
    for group, one, _ in suite:
        figures = {figure["name"]: figure for figure in one["figures"]}
        row = []
        for name in shown:
            figure = figures.get(name)
            if not figure or figure["difference"] is None or figure["real"] == 0:
                row.append("")
                continue
            spread = (figure["real_max"] - figure["real_min"]) / figure["real"] * 100
            mark = "" if abs(figure["difference"]) <= figure["tolerance"] else "*" if figure["verdict"] == "spread" else "**"
            value = f"{figure['difference']:+.1f}"
            row.append({"": value, "*": f"**{value}** *", "**": f"**{value}**"}[mark] + f" ({spread:.1f})")
        steps = one["open_loop"]["steps"]
        print(f"| {one['scenario']}{' (forced)' if group == 'forced' else ''} | {len(one['replayed'])} | "
              f"{steps['median_percent']:.1f} / {steps['p95_percent']:.1f} | " + " | ".join(row) + " |")


def main():
    kvtwin = sys.argv[1]
    suite = validated(kvtwin, "validation", "h200") + validated(kvtwin, "forced", "h200/forced")
    if "--scenarios" in sys.argv:
        return print_scenarios(suite)
    groups = {"all": suite} | {name: [one for one in suite if one[0] == name] for name in ("dense", "methods", "forced")}
    runs = {name: [run for _, one, _ in part for run in one["replayed"]] for name, part in groups.items()}
    lines = [("scenarios", lambda name: len(groups[name])),
             ("real runs that decide the same, of", lambda name: f"{sum(r['same'] for r in runs[name])} of {len(runs[name])}"),
             ("their steps", lambda name: sum(run["steps"] for run in runs[name])),
             ("step time, median / P95 error, % (steps)", lambda name: open_loop(groups[name], True)),
             ("copies, median / P95 error, % (copies)", lambda name: open_loop(groups[name], False)),
             *[(figure, lambda name, figure=figure: closed_loop(groups[name], figure)) for figure in FIGURES],
             ("within every limit", lambda name: sum(one["good"] for _, one, _ in groups[name]))]
    print("| | " + " | ".join(groups) + " |\n|---" + "|---" * len(groups) + "|")
    for title, value in lines:
        print(f"| {title} | " + " | ".join(str(value(name)) for name in groups) + " |")


main()
