#!/usr/bin/env python3
"""How much the same step differs between two runs.

  reports/evidence/validation/between_runs.py build/dev/bin/kvtwin tests/golden/h100 tests/golden/h100/second

Compares the recorded steps of both folders, scenario by scenario, until their shapes differ for the first time. Scenarios
named after the folders are left out. Prints the differences of measured times in percent; cost models take the 90th
percentile as the difference between runs (kBetweenRuns of models/cost_tables/measured_cost.cc). Then prints the figures
of whole runs that differ by more than a prediction may."""

import csv
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
SUITE = ROOT / "scenarios" / "suites" / "validation"


RUN_FIGURES = ["throughput", "tpot mean", "ttft mean", "ttft p99", "peak pages"]


def read(kvtwin, folder, scenarios):
    """{scenario: [(shape, measured us)]}, {(scenario, figure): figure of validation.json}"""
    with tempfile.TemporaryDirectory() as scratch:
        details = pathlib.Path(scratch) / "details.csv"
        done = subprocess.run([kvtwin, "validate", *(str(SUITE / f"{one}.textproto") for one in scenarios),
                               f"--recorded={folder}", f"--details={details}", "--format=json", "--quiet"],
                              stdout=subprocess.PIPE, check=False)
        if done.returncode > 1:  # 1: beyond a limit
            sys.exit(done.returncode)
        out = {one: [] for one in scenarios}
        with details.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["kind"] == "step":
                    shape = (row["padded"], row["samples"], row["pages"], row["longest"])
                    out[row["scenario"]].append((shape, float(row["measured_us"])))
        figures = {(one["scenario"], figure["name"]): figure for one in json.loads(done.stdout)["scenarios"]
                   for figure in one["figures"] if figure["name"] in RUN_FIGURES}
        return out, figures


def differing(first, second):
    """[(scenario, figure, difference)] of real runs; pages differ by per cent of the pool."""
    out = []
    for (scenario, name), figure in first.items():
        real, other = figure["real"], second[scenario, name]["real"]
        difference = other - real if name == "peak pages" else (other / real - 1) * 100
        if abs(difference) > figure["tolerance"]:
            out.append((scenario, name, difference))
    return out


def main():
    kvtwin, *folders = sys.argv[1:4]
    left_out = set(sys.argv[4:])
    names = [{one.name for one in pathlib.Path(folder).iterdir() if (SUITE / f"{one.name}.textproto").exists()} for folder in folders]
    common = sorted(names[0] & names[1] - left_out)
    (first, figures), (second, other_figures) = (read(kvtwin, folder, common) for folder in folders)
    differences = []
    for scenario in common:
        for (shape, us), (other_shape, other_us) in zip(first[scenario], second[scenario]):
            if shape != other_shape:
                break
            differences.append(abs(us / other_us - 1) * 100)
    differences.sort()
    at = [f"P{percent} {differences[len(differences) * percent // 100]:.2f}" for percent in (50, 90, 95)]
    print(f"{len(differences)} equal steps of {len(common)} scenarios: " + ", ".join(at) + " %")
    beyond = differing(figures, other_figures)
    print(f"{len({one for one, *_ in beyond})} of them differ beyond a limit" + "".join(
        f"; {scenario}: {name} {difference:+.1f}" for scenario, name, difference in beyond))


main()
