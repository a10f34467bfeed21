#!/usr/bin/env python3
"""Writes bench.json: an invented server's benchmark, in the form of `vllm bench serve --save-detailed`.

  docs/guides/examples/server/make_bench.py build/dev/bin/kvtwin

48 requests arrive at about 1.6 per second. Their times are simulated with the step times of profile.textproto, so
the example shows the commands, not the accuracy.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
REQUESTS = 48

SCENARIO = """
model {{ name: "llama-3.1-8b" }}
hardware {{ node: "rtx-4090" }}
limits {{ preset: "vllm_v1" }}
memory {{ gpu_pages: 2588 }}
trace {{ path: "trace.jsonl" format: "mooncake" }}
replay {{ mode: "open_loop" }}
cost {{ profile: "{profile}" }}
"""


def trace():
    at_ms = 0
    for i in range(REQUESTS):
        yield {"timestamp": at_ms, "input_length": 900 + 463 * (i * 7 % 11), "output_length": 40 + 13 * (i * 5 % 17)}
        at_ms += 120 + 210 * (i * 3 % 6)


def main():
    kvtwin = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in trace()))
        (work / "server.textproto").write_text(SCENARIO.format(profile=HERE / "profile.textproto"))
        subprocess.run([kvtwin, "run", work / "server.textproto", f"--out={work}/run", "--quiet"], check=True,
                       stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (work / "run" / "requests.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: row["queued_ts"])
    first = rows[0]["queued_ts"]
    gaps = [(row["last_token_ts"] - row["first_token_ts"]) / max(1, row["output_toks"] - 1) for row in rows]
    bench = {
        "backend": "vllm",
        "model_id": "simulated example",
        "duration": round(max(row["last_token_ts"] for row in rows) - first, 6),
        "input_lens": [row["input_toks"] for row in rows],
        "output_lens": [row["output_toks"] for row in rows],
        "start_times": [round(row["queued_ts"] - first, 6) for row in rows],
        "ttfts": [round(row["first_token_ts"] - row["queued_ts"], 6) for row in rows],
        "itls": [[round(gap, 5)] * (row["output_toks"] - 1) for gap, row in zip(gaps, rows)],
        "errors": [""] * len(rows),
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in bench.items()]
    (HERE / "bench.json").write_text("{" + ",\n".join(lines) + "}\n")


main()
