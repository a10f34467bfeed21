#!/usr/bin/env python3
"""Turns a request log (JSON lines, as vLLM's or as `kvtwin import` writes them) into Mooncake JSONL.

  docs/guides/examples/requests_to_trace.py requests.jsonl > trace.jsonl

Arrivals and lengths only: without hash_ids, no request shares a prefix with another.
"""
import json
import sys

with open(sys.argv[1]) as log:
    rows = [json.loads(line) for line in log]
first = min(row["queued_ts"] for row in rows)
for row in sorted(rows, key=lambda row: row["queued_ts"]):
    print(json.dumps({
        "timestamp": round(1000 * (row["queued_ts"] - first), 3),  # ms
        "input_length": row["input_toks"],
        "output_length": row["output_toks"],
    }))
