#!/usr/bin/env bash
# TriAxialKV against bf16 and the uniform formats: concurrency and throughput of
# docs/design/methods/triaxialkv.md#numbers, predicted by the cost model. Qwen3-32B's geometry (the text part of
# Qwen3-VL-32B) on one H100, agents that use a computer (osworld-like, mean prompt 11.7k, mean output 320), all
# sessions at once, without tool and think time. Prints Markdown.
#
#   scenarios/studies/triaxial.sh build/dev/bin/kvtwin [PART ...]
#
# PART: concurrency, pools, throughput, b200; default: all.
#
# Concurrency is the mean number of running requests: total time of requests without queueing, over elapsed time
# (Little's law).
set -euo pipefail

kvtwin=${1:?the program}
shift
wanted=" ${*:-concurrency pools throughput b200} "
methods=$(cd "$(dirname "${BASH_SOURCE[0]}")/../methods" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$kvtwin" trace synth osworld-like --sessions=40 --seed=7 --out="$folder/osworld.kvtrace" >/dev/null 2>&1

# run SET...: requests/s, output tokens/s, running requests, median step in ms, preemptions, pages, reused fraction.
run() {
  local set sets=()
  for set in "$@"; do sets+=("--set=$set"); done
  "$kvtwin" run "$methods/triaxial.textproto" --no-write --quiet --format=jsonl --set=model.name=qwen3-32b \
    "--set=trace.path=$folder/osworld.kvtrace" --set=replay.tool_scale=0 --set=replay.think_scale=0 \
    "${sets[@]}" | awk -v RS='[,{}]' -F: '
      { gsub(/"/, "", $1); of[$1] = $2 }
      END {
        printf "%s %s %.4f %s %s %s %.4f\n", of["requests_per_s"], of["output_tokens_per_s"],
          (of["time_latency_s"] - of["time_queue_s"]) / of["elapsed_s"], of["itl_p50_ms"], of["preemptions"],
          of["gpu_pages"], of["reused_tokens_first"] / of["admitted_prompt_tokens"]
      }'
}

table() {  # ADMISSION
  local format base row
  printf '| format | pages of 32 | x bf16 | requests that run | x bf16 | output tokens/s | x bf16 | step, ms | preemptions | reused |\n'
  printf '|---|---|---|---|---|---|---|---|---|---|\n'
  base=$(run policies.precision=bf16 "limits.admission=$1")
  for format in bf16 fp8 int4 kivi_int2 triaxial; do
    row=$(run "policies.precision=$format" "limits.admission=$1")
    awk -v name="$format" -v row="$row" -v base="$base" 'BEGIN {
      split(row, r, " "); split(base, b, " ")
      printf "| %s | %d | %.2f | %.2f | %.2f | %.1f | %.2f | %.1f | %d | %.0f %% |\n", name, r[6], r[6] / b[6],
        r[3], r[3] / b[3], r[2], r[2] / b[2], r[4], r[5], 100 * r[7]
    }'
  done
}

concurrency() {
  printf '## Concurrency and throughput\n\nPaper: 11.78 requests against 3.46 (x3.40), throughput x1.52, capacity x4.5.\n'
  for admission in watermark full_reservation; do
    printf '\n### admission %s\n\n' "$admission"
    table "$admission"
  done
}

pools() {
  printf '\n## How the pools are cut\n\nKV entries int2 : int4 = (4 - B) : (B - 2). The tag map stays; pages x bf16 is what the layouts hold.\n\n'
  printf '| B | int2 KV entries planned | pages of 32 | x bf16 | requests that run | x bf16 | output tokens/s | x bf16 |\n|---|---|---|---|---|---|---|---|\n'
  base=$(run policies.precision=bf16)
  for bits in 2.3 2.5 2.6 2.7 2.9 3.1 3.3 3.6; do
    row=$(run "policies.precision_options.bits=$bits")
    awk -v bits="$bits" -v row="$row" -v base="$base" 'BEGIN {
      split(row, r, " "); split(base, b, " ")
      printf "| %s | %.0f %% | %d | %.2f | %.2f | %.2f | %.1f | %.2f |\n", bits, 50 * (4 - bits), r[6], r[6] / b[6], r[3],
        r[3] / b[3], r[2], r[2] / b[2]
    }'
  done
}

# A request takes P of prefill and its fraction of D decode steps: 1/rate = P + D step / running requests.
throughput() {
  local base
  base=$(run policies.precision=bf16)
  printf '\n## Where the throughput ratio comes from\n\n'
  awk -v a="$base" -v b="$(run)" 'BEGIN {
    split(a, x, " "); split(b, y, " ")
    dx = x[2] / x[1] * x[4] / 1e3 / x[3]; dy = y[2] / y[1] * y[4] / 1e3 / y[3]
    px = 1 / x[1] - dx; py = 1 / y[1] - dy
    printf "Seconds of an engine per request: bf16 %.2f of prefill + %.2f of decode; triaxial %.2f + %.2f.\n", px, dx, py, dy
    printf "Without prefill the ratio would be %.2f. It would be 1.52 if a prefill took %.2f s in both.\n", dx / dy,
      (dx - 1.52 * dy) / 0.52
  }'
}

# The paper's two rows of a B200, whose prices are a roofline of its datasheet. Enough sessions to fill its memory.
b200() {
  local model sessions paper format base row alone alone_base fit
  printf '\n## B200\n\nWithout tool and think time the prompts of waiting agents keep the batch small; requests that fit: KV capacity over\n'
  printf '11.3k tokens. No reuse: prefix cache off, as if every prompt were computed.\n\n'
  printf '| model | format | requests that fit | x bf16 | requests that run | x bf16 | output tokens/s | x bf16 | no reuse, x bf16 | paper |\n'
  printf '|---|---|---|---|---|---|---|---|---|---|\n'
  for model in qwen3-8b qwen3-32b; do
    [[ $model == qwen3-8b ]] && sessions=400 paper="84.06 to 295.76 requests; x1.26" || sessions=160 paper="29.79 to 118.82 requests; x1.32"
    "$kvtwin" trace synth osworld-like --sessions=$sessions --seed=7 --set=steps_max=6 --out="$folder/$model.kvtrace" > /dev/null 2>&1
    local with=(hardware.node=b200 "model.name=$model" "trace.path=$folder/$model.kvtrace" limits.requests_max=512 limits.step_tokens_max=8192)
    base=$(run "${with[@]}" policies.precision=bf16)
    alone_base=$(run "${with[@]}" policies.precision=bf16 limits.prefix_cache=false)
    for format in bf16 int4 kivi_int2 triaxial; do
      row=$(run "${with[@]}" "policies.precision=$format")
      alone=$(run "${with[@]}" "policies.precision=$format" limits.prefix_cache=false)
      fit=$([[ $format == triaxial ]] && echo "$paper" || echo "")
      awk -v model="$model" -v name="$format" -v paper="$fit" -v row="$row" -v base="$base" -v alone="$alone" -v alone_base="$alone_base" 'BEGIN {
        split(row, r, " "); split(base, b, " "); split(alone, a, " "); split(alone_base, c, " ")
        printf "| %s | %s | %.0f | %.2f | %.1f | %.2f | %.0f | %.2f | %.2f | %s |\n", model, name, r[6] * 32 / 11300, r[6] / b[6], r[3],
          r[3] / b[3], r[2], r[2] / b[2], a[2] / c[2], paper
      }'
    done
  done
}

for part in concurrency pools throughput b200; do
  if [[ $wanted == *" $part "* ]]; then "$part"; fi
done
