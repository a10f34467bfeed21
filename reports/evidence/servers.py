#!/usr/bin/env python3
"""Compares predictions with public measured runs of real servers, and writes reports/evidence/servers.md and .csv.

  reports/evidence/servers.py build/dev/bin/kvtwin            writes both files
  reports/evidence/servers.py build/dev/bin/kvtwin --check    fails if a figure got worse than in servers.csv

Two columns: *nothing fitted* (the GPU's roofline, or kernel tables of the GPU; no figure from the run), and
*calibrated* on a part that is not scored: 30 requests where there are single requests, one rate where there are
aggregates. Runs that are not part of the repository are read from $KVTWIN_DATA, or ../shared/data beside it; without
them --check compares the rest.
"""
import argparse
import csv
import json
import math
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
DATA = pathlib.Path(os.environ.get("KVTWIN_DATA", ROOT.parent / "shared" / "data"))
FIRST = 30  # requests to calibrate on
METRICS = ("ttft", "tpot", "latency")
COLUMNS = ("run", "base", "column", "metric", "statistic", "real", "error_percent")


class Tool:
    def __init__(self, path, folder):
        self.path, self.folder = str(pathlib.Path(path).resolve()), pathlib.Path(folder)
        self.runs = 0

    def call(self, *words):
        done = subprocess.run([self.path, *map(str, words)], capture_output=True, text=True, cwd=ROOT)
        if done.returncode != 0:
            sys.exit(f"kvtwin {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def requests(self, scenario, *sets):
        """Runs a scenario and returns its requests in order of arrival."""
        self.runs += 1
        out = self.folder / f"run{self.runs}"
        self.call("run", scenario, "--quiet", f"--out={out}", *[f"--set={one}" for one in sets])
        rows = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
        return sorted(rows, key=lambda row: row["queued_ts"])


def error(ours, real):
    return round(100 * (ours - real) / real, 2)


# Runs with single requests.

def request_runs(tool):
    """The two runs of tests/golden/vllm, on a roofline and on kernel tables of the same GPU."""
    for gpu in ("rtx4090", "rtxpro6000"):
        log = ROOT / "tests" / "golden" / "vllm" / gpu / "requests.jsonl"
        scenario = f"scenarios/suites/vllm/vllm_{gpu}_llama8b.textproto"
        for base, profile in (("roofline", ""), ("kernel tables", f"tests/golden/vllm/{gpu}/profile")):
            fitted = tool.folder / f"{gpu}_{base.split()[0]}.textproto"
            tool.call("calibrate", "server", log, f"--scenario={scenario}", f"--set=cost.profile={profile}",
                      f"--first={FIRST}", f"--out={fitted}")
            for column, used in (("nothing fitted", profile), ("calibrated", fitted)):
                out = tool.folder / f"{gpu}_{base.split()[0]}_{column.split()[0]}"
                tool.call("run", scenario, "--quiet", f"--out={out}", f"--set=cost.profile={used}")
                # An uncalibrated prediction is scored on the same requests.
                rows = json.loads(tool.call("compare", out, log, f"--skip={FIRST}", "--format=json"))
                rows = rows["rows"] if isinstance(rows, dict) else rows
                for row in rows:
                    if row["statistic"] in ("mean", "median", "p99"):
                        yield (f"vllm-0.19-{gpu}", base, column, row["metric"], row["statistic"], row["real_ms"],
                               round(row["difference_percent"], 2))


# Series of rates of which only aggregates are known.

SERIES_SCENARIO = """
model {{ name: "llama-3.1-70b" weights: "fp8" }}
hardware {{ node: "h200" }}
limits {{ preset: "vllm_v1" requests_max: {requests_max} step_tokens_max: 8192 }}
memory {{ gpu_pages: {pages} }}
policies {{ precision: "fp8" }}
trace {{ path: "{name}.jsonl" format: "mooncake" block_tokens: 16 }}
replay {{ mode: "open_loop" }}
"""

SERIES = (
    # name, folder, --max-num-seqs, KV tokens of the server's log
    ("vllm-0.14-h200-sharegpt", "phase0/20260224-185458", 1024, 348304),
)
CALIBRATED_RATE = "1.0"
COLD_RATE = "0.5"  # the first of the series; the others find the same 300 prompts in the prefix cache
WARM_PASS_S = 600  # one prompt every two seconds before them


def exponential_lengths(count, total, draws):
    """Quantiles of an exponential distribution with this sum, in random order: nothing but the total is known."""
    raw = [-math.log(1 - (i + 0.5) / count) for i in range(count)]
    draws.shuffle(raw)
    return [max(4, round(one * total / sum(raw))) for one in raw]


def write_series_trace(path, bench, warm):
    draws = random.Random(1)
    count = bench["completed"]
    prompts = exponential_lengths(count, bench["total_input_tokens"], draws)
    outputs = exponential_lengths(count, bench["total_output_tokens"], draws)
    gaps = [-math.log(1 - (i + 0.5) / count) for i in range(count)]
    draws.shuffle(gaps)
    at, block, before, lines = float(warm and WARM_PASS_S), 0, [], []
    for i, (prompt, output, gap) in enumerate(zip(prompts, outputs, gaps)):
        blocks = -(-prompt // 16)
        row = {"timestamp": round(1e3 * at, 3), "input_length": prompt, "output_length": output,
               "hash_ids": list(range(block, block + blocks))}
        lines.append(json.dumps(row))
        before.append(json.dumps(row | {"timestamp": 1e3 * WARM_PASS_S * i / count, "output_length": 1}))
        at += gap / float(bench["request_rate"])
        block += blocks
    path.write_text("\n".join((before if warm else []) + lines) + "\n")


def series_requests(tool, scenario, bench, *sets):
    """The requests of the series, without those that warmed the cache before them."""
    return tool.requests(scenario, *sets)[-bench["completed"]:]


def means(requests):
    """Mean TTFT, TPOT and latency in ms, from arrival as a client sees them."""
    ttft = [row["first_token_ts"] - row["arrival_time"] for row in requests]
    latency = [row["last_token_ts"] - row["arrival_time"] for row in requests]
    tpot = [(row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in requests]
    return [1e3 * statistics.mean(values) for values in (ttft, tpot, latency)]


def measured_means(bench):
    return [bench["mean_ttft_ms"], bench["mean_tpot_ms"], bench["mean_e2el_ms"]]


def write_profile(path, weights):
    path.write_text("# proto-file: traces/proto/server_profile.proto\n"
                    "# proto-message: kvtwin.v1.ServerProfile\n"
                    f'model: "llama-3.1-70b" device: "h200" weights: {weights:.4f}\n')


def fit_rate(tool, scenario, bench, path):
    """Two figures from one rate: the factor of a decode step by mean TPOT, then the front end by mean TTFT."""
    weights, front_ns = 1.0, 3e6  # that of vllm_v1
    real = measured_means(bench)
    for _ in range(6):
        write_profile(path, weights)
        sets = [f"cost.profile={path}", f"cost.front_end_request_ns={round(front_ns)}"]
        ours = means(series_requests(tool, scenario, bench, *sets))
        weights = min(4, max(0.25, weights * real[1] / ours[1]))
        front_ns = min(1e8, max(0, front_ns + 1e6 * (real[0] - ours[0])))
    write_profile(path, weights)
    return [f"cost.profile={path}", f"cost.front_end_request_ns={round(front_ns)}"]


def series_runs(tool):
    if not (DATA / "gtc-2026-doks-h200").is_dir():
        print(f"skipped: {DATA / 'gtc-2026-doks-h200'} is not there", file=sys.stderr)
        return
    for name, folder, requests_max, kv_tokens in SERIES:
        found = {}
        for file in sorted((DATA / "gtc-2026-doks-h200" / folder).glob("rate-*.json")):
            bench = json.loads(file.read_text())
            rate = re.fullmatch(r"rate-(.*)\.json", file.name)[1]
            scenario = tool.folder / f"{name}-{rate}.textproto"
            scenario.write_text(SERIES_SCENARIO.format(name=scenario.stem, requests_max=requests_max,
                                                       pages=kv_tokens // 16))
            write_series_trace(tool.folder / f"{scenario.stem}.jsonl", bench, warm=rate != COLD_RATE)
            found[rate] = (bench, scenario)
        profile = tool.folder / f"{name}.textproto"
        bench, scenario = found[CALIBRATED_RATE]
        fitted = fit_rate(tool, scenario, bench, profile)
        for rate, (bench, scenario) in sorted(found.items(), key=lambda item: float(item[0])):
            for column, sets in (("nothing fitted", []), ("calibrated", fitted)):
                if column == "calibrated" and rate == CALIBRATED_RATE:
                    continue
                ours = means(series_requests(tool, scenario, bench, *sets))
                for metric, mine, real in zip(METRICS, ours, measured_means(bench)):
                    yield (f"{name}-rate-{rate}", "roofline", column, metric, "mean", round(real, 3), error(mine, real))


# Throughput over time.

CURVES = (
    # case of the data, what it is, engines, prefill engines, model, lengths
    ("SD+PC", "h100-tp4-llama70b", 1, 0, "llama-3.1-70b", "llama"),
    ("MD", "h100-2xtp4-llama70b", 2, 0, "llama-3.1-70b", "llama"),
    ("PDD", "h100-prefill-decode-llama70b", 2, 1, "llama-3.1-70b", "llama"),
    ("SM", "h100-tp4-mixtral", 1, 0, "mixtral-8x7b", "mixtral"),
)
CURVE_SCENARIO = """
model {{ name: "{model}" }}
hardware {{ node: "h100-x8" gpus: 8 }}
engines {{ count: {engines} tensor_parallel: 4 prefill: {prefill} }}
limits {{ preset: "vllm_v1" step_tokens_max: 8192 }}
trace {{ path: "{name}.jsonl" format: "mooncake" }}
replay {{ mode: "open_loop" }}
"""


def curve_moments(points):
    """Of (seconds, tokens): the mean instant of a token, and when the last hundredth begins."""
    total = sum(tokens for _, tokens in points)
    mean = sum(at * tokens for at, tokens in points) / total
    passed = 0
    for at, tokens in points:
        passed += tokens
        if passed >= 0.99 * total:
            return mean, at
    return mean, points[-1][0]


def curve_runs(tool):
    folder = DATA / "llmservingsim-h100" / "throughput_reference"
    if not folder.is_dir():
        print(f"skipped: {folder} is not there", file=sys.stderr)
        return
    for case, name, engines, prefill, model, lengths in CURVES:
        rows = list(csv.DictReader((folder / f"workload_sharegpt_req300_rate10_{lengths}.lengths.csv").open()))
        arrivals = [int(row["arrival_time_ns"]) / 1e9 for row in rows]
        (tool.folder / f"{name}.jsonl").write_text("".join(
            json.dumps({"timestamp": 1e3 * at, "input_length": int(row["input_toks"]),
                        "output_length": int(row["output_toks"])}) + "\n" for at, row in zip(arrivals, rows)))
        scenario = tool.folder / f"{name}.textproto"
        scenario.write_text(CURVE_SCENARIO.format(model=model, engines=engines, prefill=prefill, name=name))
        with (folder / "H100" / f"{case}_throughput.tsv").open() as file:
            # A bin that is labelled t has the tokens of the second before it.
            measured = [(float(row["time_s"]) - 0.5, float(row["throughput"]))
                        for row in csv.DictReader(file, delimiter="\t")]
        ours = []
        for row in tool.requests(scenario):
            steps = max(1, row["output_toks"] - 1)
            gap = (row["last_token_ts"] - row["first_token_ts"]) / steps
            ours += [(row["first_token_ts"] + i * gap, 1) for i in range(row["output_toks"])]
        ours.sort()
        began = statistics.mean(arrivals)
        (real_mean, real_end), (mean, end) = curve_moments(measured), curve_moments(ours)
        yield (name, "roofline", "nothing fitted", "token delay", "mean", round(1e3 * (real_mean - began), 1),
               error(mean - began, real_mean - began))
        yield (name, "roofline", "nothing fitted", "99 % of tokens", "instant", round(1e3 * real_end, 1),
               error(end, real_end))


# The pages.

def published():
    """LLMServingSim's own report on the two runs of single requests, in the order of METRICS."""
    for gpu, folder in (("rtx4090", "RTX4090"), ("rtxpro6000", "RTXPRO6000")):
        path = DATA / "llmservingsim" / "measured" / folder / "Llama-3.1-8B" / "validation" / "summary.txt"
        if path.exists():
            text = path.read_text()
            yield f"vllm-0.19-{gpu}", [re.search(rf"{word} Mean .*?([-+][\d.]+)%", text)[1]
                                       for word in ("TTFT", "TPOT", "Latency")]


def median_of(rows, column, metrics, base=None):
    values = [abs(row[6]) for row in rows if row[2] == column and row[3] in metrics and base in (None, row[1])]
    return f"{statistics.median(values):.1f}" if values else "-"


def request_table(rows):
    claimed = dict(published())
    out = ["| run | base | statistic | TTFT | TPOT | latency | calibrated: TTFT | TPOT | latency |",
           "|---|---|---|---|---|---|---|---|---|"]
    keys = dict.fromkeys((row[0], row[1], row[4]) for row in rows)
    for run, base, statistic in keys:
        cells = [f"{row[6]:+.1f}" for column in ("nothing fitted", "calibrated") for metric in METRICS for row in rows
                 if row[:5] == (run, base, column, metric, statistic)]
        out.append(f"| {run} | {base} | {statistic} | " + " | ".join(cells) + " |")
    for run, errors in claimed.items():
        out.append(f"| {run} | *LLMServingSim 2.0, its own report, all 300 requests* | mean | " + " | ".join(errors)
                   + " | | | |")
    return out


def series_table(rows):
    out = ["| run | real TTFT, TPOT, latency, ms | TTFT | TPOT | latency | calibrated: TTFT | TPOT | latency |",
           "|---|---|---|---|---|---|---|---|"]
    for run in dict.fromkeys(row[0] for row in rows):
        mine = {(row[2], row[3]): row for row in rows if row[0] == run}
        real = ", ".join(f"{mine['nothing fitted', metric][5]:,.1f}" for metric in METRICS)
        cells = [f"{mine[column, metric][6]:+.1f}" if (column, metric) in mine else "fitted to"
                 for column in ("nothing fitted", "calibrated") for metric in METRICS]
        out.append(f"| {run} | {real} | " + " | ".join(cells) + " |")
    return out


def curve_table(rows):
    out = ["| run | figure | real, ms | nothing fitted |", "|---|---|---|---|"]
    return out + [f"| {row[0]} | {row[4]} {row[3]} | {row[5]:,.1f} | {row[6]:+.1f} |" for row in rows]


def page(single, series, curves):
    every = single + series
    lines = [
        "# Accuracy against real servers", "",
        "Errors in per cent, (predicted - measured) / measured, against public measured runs.",
        "Written by `reports/evidence/servers.py build/dev/bin/kvtwin`; `servers.csv` has every figure, and a test",
        "(`ctest -R evidence_servers`) fails if one gets worse.", "",
        "* *nothing fitted*: the GPU's roofline, or kernel tables of the GPU, the settings of the server, and the host",
        "  time and front end that the preset `vllm_v1` assumes (`scenarios/load/vllm_v1.txtpb` has their sources).",
        f"* *calibrated*: `kvtwin calibrate server` on the first {FIRST} requests, scored on the others. Where there are",
        f"  aggregates only, two figures (decode step, front end) fitted to the means at rate {CALIBRATED_RATE}, scored at the"
        " other rates.", "",
        "| median of the errors' sizes | TTFT | TPOT | latency |", "|---|---|---|---|"]
    for column in ("nothing fitted", "calibrated"):
        for title, rows in (("single requests", single), ("aggregates", series)):
            lines.append(f"| {column}, {title} | " + " | ".join(median_of(rows, column, (m,)) for m in METRICS) + " |")
    lines.append("| nothing fitted, all | " + " | ".join(median_of(every, "nothing fitted", (m,)) for m in METRICS) + " |")
    lines += ["", "## Single requests", "",
              "vLLM 0.19, Llama-3.1-8B, 300 ShareGPT requests at 10 per second (`tests/golden/vllm/README.md`).",
              "Kernel tables are LLMServingSim's microbenchmarks of the same GPUs, not of these runs.", ""]
    lines += request_table(single)
    if series:
        lines += ["", "## Rates on an H200", "",
                  "vLLM 0.14.1, Llama-3.1-70B-FP8, FP8 KV, one H200 (DO-Solutions/gtc-2026-doks, MIT).",
                  "The prompts are not public. What is known are totals and rates, so the workload is rebuilt: 300",
                  "requests, stratified exponential gaps, and lengths as exponential quantiles in random order.",
                  "KV tokens are those of the server's log. All rates sent the same prompts to the same server in ascending",
                  "order (the data's README); we take them to be in its prefix cache from the second rate on (hits were not",
                  "recorded), which leaves a TTFT of two and a half decode steps and the front end. The first rate has",
                  "the server's cold start in it. ITL is 20 to 21 ms in batches of up to 16 and 27 to 28 ms above, which",
                  "the rates of 2.5 and 3.0 reach. Another FP8 kernel above 16 would explain it; it was not looked for.", "",
                  "The multi-turn series of the same server (five settings, 8 to 12 rates) are left out: which prompts share",
                  "a prefix is not public, and both the queue and TTFT follow from it.", ""]
        lines += series_table(series)
    if curves:
        lines += ["", "## Throughput over time on H100s", "",
                  "vLLM behind LLMServingSim's paper, 300 ShareGPT requests at 10 per second: tokens per second, in bins of",
                  "one second. *token delay* is the mean instant of a token, less the mean arrival. Nothing is fitted.",
                  "The sources do not say when the clock of the bins starts, nor the server's limits.", ""]
        lines += curve_table(curves)
    lines += ["", "## Other simulators, on other data", "",
              "No other simulator reports errors on these runs, except LLMServingSim on the first two. Their reports elsewhere:", "",
              "| simulator | data | claim | source |", "|---|---|---|---|",
              "| AISimulate | 5,000 Mooncake requests, B200 | TTFT 13.5 to 15.7 %, TPOT 2.8 to 5.2 % |"
              " ai-dynamo/aisimulate @305e46b |",
              "| BLIS (evolved) | 15 runs, vLLM 0.15.1 | latency 23.2, TTFT 23.6, ITL 22.4 % (median) |"
              " inference-sim#943, #944 |",
              "| LLMServingSim 1.1 | 32 of the same, H100 | latency 18.8, TTFT 72.5, ITL 21.8 % (median) |"
              " the same |",
              "| Vidur | 4 of the same | latency 8.9, TTFT 18.1, ITL 10.3 % (median) | the same |", ""]
    return "\n".join(lines)


def allowed(before):
    """An error may grow by a tenth of itself, and by 0.3 points for roundings that differ between machines."""
    return abs(before) * 1.1 + 0.3


def check(rows):
    with (HERE / "servers.csv").open() as file:
        known = {tuple(row[:5]): float(row[6]) for row in csv.reader(file) if row[0] != "run"}
    worse = [f"{' / '.join(row[:5])}: {row[6]:+.2f} %, was {known[row[:5]]:+.2f} %" for row in rows
             if row[:5] in known and abs(row[6]) > allowed(known[row[:5]])]
    missing = [" / ".join(row[:5]) + ": not in servers.csv" for row in rows if row[:5] not in known]
    print("\n".join(worse + missing))
    print(f"{len(rows)} figures compared, {len(worse)} worse, {len(missing)} unknown")
    return 1 if worse or missing else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvtwin")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if not given.check and not (DATA / "gtc-2026-doks-h200").is_dir():
        sys.exit(f"{DATA}/gtc-2026-doks-h200 is not there; set KVTWIN_DATA to the folder of the outside data")
    with tempfile.TemporaryDirectory() as folder:
        tool = Tool(given.kvtwin, folder)
        single, series, curves = list(request_runs(tool)), list(series_runs(tool)), list(curve_runs(tool))
    rows = single + series + curves
    if given.check:
        return check(rows)
    with (HERE / "servers.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    (HERE / "servers.md").write_text(page(single, series, curves))
    return 0


sys.exit(main())
