#!/usr/bin/env python3
"""What prices of operations say about methods and models that they were not measured on.

    left_out.py KVTWIN GPU [MODEL=FOLDER...]

GPU names a profile of models/measured and a folder of tests/golden with recordings: its calibration runs without
those of one method at a time give prices, with which the method's validation runs are compared. Then the profile as it
is prices runs of other models (a model's name and a folder of recordings beside), which no calibration run has. Prints a
table.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
SUITES = ROOT / "scenarios" / "suites"
# Calibration runs of a method, by its validation scenario; none: no calibration run has it.
OF_METHOD = {
    "snapkv": [], "knorm": [], "int4": [], "fp8": [], "h2o": ["h2o"], "tova": ["tova"],
    "pyramidkv": ["pyramidkv"], "streaming_llm": ["streaming_llm"], "intentkv": ["intentkv"], "quest": ["quest"],
    "arkvale": ["arkvale_natural"], "freekv": ["freekv_natural", "freekv_some"],
    "triaxialkv": ["triaxialkv_ageing"],
}


def kvtwin(program, *words):
    done = subprocess.run([program, *words, "--quiet"], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return done.stdout


def prices(program, profile, recordings, without, out):
    runs = [r for r in sorted(recordings.iterdir()) if r.is_dir() and r.name not in without]
    scenarios = [f"--scenario={SUITES / 'calibration' / (r.name + '.textproto')}" for r in runs]
    kvtwin(program, "calibrate", "device", f"--operations={profile}", f"--recorded={recordings}", *scenarios, f"--out={out}")


def errors(program, scenario, recordings, profile, *sets):
    text = kvtwin(program, "validate", str(SUITES / "validation" / f"{scenario}.textproto"), f"--recorded={recordings}",
                  f"--set=cost.profile={profile}", "--format=json", *sets)
    one = json.loads(text)["scenarios"][0]
    figures = {f["name"]: f["difference"] for f in one["figures"]}
    steps = one["open_loop"]["steps"]
    return (steps["median_percent"], steps["p95_percent"], one["open_loop"]["total_percent"],
            figures["tpot mean"], figures["ttft mean"])


def main():
    program, gpu = sys.argv[1:3]
    golden, profile = ROOT / "tests" / "golden" / gpu, ROOT / "models" / "measured" / f"{gpu}.textproto"
    row = "| {:<16} | {:<24} | {:5.2f} / {:5.2f} | {:+6.2f} | {:+6.1f} | {:+6.1f} |".format
    print("| validated | left out | steps, median / P95 % | all steps % | TPOT % | TTFT % |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "prices.textproto"
        for method, runs in OF_METHOD.items():
            if not (golden / method).is_dir():
                continue
            if runs:
                prices(program, profile, golden / "calibration", [], out)
                print(row(method, "nothing", *errors(program, method, golden, out)))
            prices(program, profile, golden / "calibration", runs, out)
            print(row(method, ", ".join(runs) or "no run has it", *errors(program, method, golden, out)))
        for other in sys.argv[3:]:
            model, recordings = other.split("=")
            for scenario in sorted(one.name for one in (golden / recordings).iterdir() if one.is_dir()):
                print(row(scenario, f"all runs of {model}",
                          *errors(program, scenario, golden / recordings, profile, f"--set=model.name={model}")))


main()
