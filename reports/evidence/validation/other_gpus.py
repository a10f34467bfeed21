#!/usr/bin/env python3
"""Predictions for GPUs and models that were not calibrated, compared with recorded runs.

  reports/evidence/validation/other_gpus.py build/dev/bin/kvtwin            writes other-gpus.md and other-gpus.csv
  reports/evidence/validation/other_gpus.py build/dev/bin/kvtwin --check    fails if a pooled error got worse

Three questions, each answered with profiles of other machines alone:

  nothing calibrated            no profile of this kind of GPU: that of another GPU, by the ratio of rooflines
  another model calibrated      a profile of this kind of GPU, but of another model
  device calibrated alone       the machine's own kernels; what methods add is the mean of the other machines

Each row is computed with a folder of models in which the profile of the machine in question is missing or lacks
its methods; everything else is `kvtwin validate` as it is.
"""
import argparse
import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SUITE = "scenarios/suites/validation"
COLUMNS = ("question", "machine", "scenario", "steps", "median", "p95", "mean", "tpot", "ttft")
WORSE = 1.1  # --check allows a pooled error a tenth more, as `kvtwin validate --baseline` does


@dataclass
class Machine:
    title: str
    recorded: str  # folder of recordings
    profile: str   # of this kind of GPU, in models/measured
    model: str = ""  # in place of the scenarios' model: the profile is of another one


MACHINES = (
    Machine("H100, Llama-3.1-8B", "tests/golden/h100", "h100"),
    Machine("another H200 run, Llama-3.1-8B", "tests/golden/h200/second", "h200"),
    Machine("H200, Llama-3.1-8B", "tests/golden/h200", "h200"),
    Machine("H200, Qwen2.5-7B", "tests/golden/h200/qwen2.5-7b", "h200", "qwen2.5-7b"),
    Machine("H200, Qwen3-14B", "tests/golden/h200/qwen3-14b", "h200", "qwen3-14b"),
)


def is_method(scenario):
    """Whether the scenario drops or chooses KV entries, or packs them."""
    text = (ROOT / SUITE / f"{scenario}.textproto").read_text()
    return re.search(r'(scorer|retrieval|precision): *"', text) is not None


def without_operations(text):
    return re.sub(r"^operations \{.*?^\}\n", "", text, flags=re.S | re.M)


def validate(kvtwin, machine, scenarios, models, profile):
    """Runs `kvtwin validate` with a folder of models, and returns its result."""
    words = [kvtwin, "validate", *(f"{SUITE}/{one}.textproto" for one in scenarios),
             f"--recorded={machine.recorded}", f"--set=cost.profile={profile}", "--format=json", "--quiet"]
    if machine.model:
        words += [f"--set=model.name={machine.model}"]
    env = dict(os.environ, KVTWIN_MODELS=str(models), KVTWIN_SCENARIOS=str(ROOT / "scenarios"))
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=env)
    if done.returncode not in (0, 1):  # 1: a figure is beyond its limit
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return json.loads(done.stdout)


def rows_of(question, machine, result):
    def percent(value):
        return round(value, 2)

    def figure(scenario, name):
        return next((percent(one["difference"]) for one in scenario["figures"] if one["name"] == name), "")
    pooled = result["steps"]
    yield (question, machine.title, "all", pooled["count"], percent(pooled["median_percent"]),
           percent(pooled["p95_percent"]), percent(pooled["mean_percent"]), "", "")
    for scenario in result["scenarios"]:
        steps = scenario["open_loop"]["steps"]
        yield (question, machine.title, scenario["scenario"], steps["count"], percent(steps["median_percent"]),
               percent(steps["p95_percent"]), percent(steps["mean_percent"]), figure(scenario, "tpot mean"),
               figure(scenario, "ttft mean"))


def measure(kvtwin, folder):
    """The rows of every question on every machine."""
    for number, machine in enumerate(MACHINES):
        names = sorted(one.name for one in (ROOT / machine.recorded).iterdir()
                       if (ROOT / SUITE / f"{one.name}.textproto").exists())
        models = folder / str(number)
        shutil.copytree(ROOT / "models", models, ignore=shutil.ignore_patterns("*.cc", "*.h", "*.py", "*.npz", "*.safetensors"))
        dense = [one for one in names if not is_method(one)]
        if machine.model:
            yield from rows_of("another model calibrated", machine, validate(kvtwin, machine, dense, models, "this"))
        own = models / "measured" / f"{machine.profile}.textproto"
        alone = folder / f"{number}.textproto"
        alone.write_text(without_operations(own.read_text()))
        own.unlink()
        yield from rows_of("nothing calibrated", machine, validate(kvtwin, machine, dense, models, "this"))
        methods = [one for one in names if is_method(one)]
        yield from rows_of("device calibrated alone", machine, validate(kvtwin, machine, methods, models, alone))


def signed(value):
    return "" if value == "" else f"{value:+.1f}"


def page(rows):
    out = ["# GPUs and models that were not calibrated", "",
           "Written by `reports/evidence/validation/other_gpus.py build/dev/bin/kvtwin`; `ctest -R evidence_other_gpus`",
           "guards the pooled errors. The runs are recordings of the CUDA engine in `tests/golden`. Errors are in percent of",
           "the measured time, (predicted - measured) / measured.", "",
           "* *Nothing calibrated*: the dense scenarios, without any profile of this kind of GPU. Times are derived from",
           "  another GPU's profile of Llama-3.1-8B ([how](../../../docs/accuracy.md#other-gpus)).",
           "  One constant of that rule is fitted to kernel tables of both GPUs (`kGemmFixedNs`), none to these runs.",
           "* *Another model calibrated*: the dense scenarios, from a profile of this kind of GPU with another model.",
           "* *Device calibrated alone*: scenarios with a method or a packed format, with the machine's own `kvtwin calibrate",
           "  device` without what methods add to steps (of Llama-3.1-8B: another model's dense operations are derived).",
           "  What methods add is the mean of other kinds of GPUs, and counts by layers and heads.", ""]
    for question in dict.fromkeys(row[0] for row in rows):
        out += [f"## {question.capitalize()}", "",
                "| machine | scenario | steps | median | P95 | mean | TPOT | TTFT |", "|---|---|---|---|---|---|---|---|"]
        for _, machine, scenario, steps, median, p95, mean, tpot, ttft in (row for row in rows if row[0] == question):
            name = f"**{scenario}**" if scenario == "all" else scenario
            out.append(f"| {machine} | {name} | {steps:,} | {median:.1f} | {p95:.1f} | {mean:+.1f} | {signed(tpot)} | "
                       f"{signed(ttft)} |")
        out.append("")
    return "\n".join(out).rstrip() + "\n"


def check(rows):
    with (HERE / "other-gpus.csv").open() as file:
        known = {tuple(row[:3]): row for row in csv.reader(file)}
    worse = []
    for row in (row for row in rows if row[2] == "all"):
        old = known.get(row[:3])
        if old is None:
            sys.exit(f"other-gpus.csv has no row of {row[0]}, {row[1]}: write it anew")
        for name, value, limit in zip(("median", "P95"), row[4:6], old[4:6]):
            if value > float(limit) * WORSE:
                worse.append(f"{row[0]}, {row[1]}: {name} {value} %, was {limit} %")
    print("\n".join(worse) or f"{len(rows)} rows compared, none worse")
    return 1 if worse else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvtwin")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    kvtwin = str(pathlib.Path(given.kvtwin).resolve())
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measure(kvtwin, pathlib.Path(folder)))
    if given.check:
        return check(rows)
    with (HERE / "other-gpus.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    (HERE / "other-gpus.md").write_text(page(rows))
    return 0


sys.exit(main())
