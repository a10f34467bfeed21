#!/usr/bin/env bash
# TANGRAM's throughput against full KV on 4 x A100-80 (TP4), its parts added one by one, and H_p = 1..32 with three
# prices of bookkeeping. Prints Markdown.
#
#   scenarios/studies/tangram.sh build/dev/bin/kvtwin [CALLS [OUTPUT [PART ...]]]
#
# PART: parts, reclaim, groups, terms; default: all.
#
# All requests arrive at once; throughput is requests per second until the last one ends.
set -euo pipefail

kvtwin=${1:?the program}
requests=${2:-128}
output=${3:-1024}
shift $(($# < 3 ? $# : 3))
wanted=" ${*:-parts reclaim groups terms} "
methods=$(cd "$(dirname "${BASH_SOURCE[0]}")/../methods" && pwd)
. "$methods/../studies/common.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Inputs of a length class: five lengths around the middle, 50 to 150 % of it.
lengths() {  # NAME MIDDLE OUTPUT
  {
    echo TIMESTAMP,ContextTokens,GeneratedTokens
    for ((i = 0; i < requests; ++i)); do
      echo "2026-01-01 00:00:00.0000000,$(($2 * (2 + i % 5) / 4)),$3"
    done
  } > "$work/$1.csv"
}
lengths short 4096 "$output"
lengths mid 16384 "$output"
lengths long 30720 "$output"

mapfile -t heads < <(fractions_of "$methods/tangram.textproto")
mean=${heads[0]} deviation=${heads[1]}

common=(hardware.node=a100-80gb-x4 engines.tensor_parallel=4 limits.requests_max=512 trace.format=azure replay.arrivals=all_at_once
  limits.step_tokens_max=4096 limits.prefix_cache=false memory.page_tokens=16)
profile=(policies.budget_options.relative=true "policies.budget_options.mean=$mean" "policies.budget_options.deviation=$deviation"
  policies.budget_options.sinks=4 policies.budget_options.window=32)

# result METHOD LENGTH SET...: the run as one line of JSON.
result() {
  local method=$1 length=$2 set sets=()
  shift 2
  for set in "${common[@]}" "trace.path=$work/$length.csv" "$@"; do sets+=("--set=$set"); done
  "$kvtwin" run "$methods/$method.textproto" --no-write --quiet --format=jsonl "${sets[@]}"
}
of() {  # KEY JSON
  local row=${2#*\"$1\":}
  [[ $row != "$2" ]] && printf '%s' "${row%%[,\}]*}" || printf '1'
}

row() {  # NAME FULL JSON
  printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" "$(number "$(of requests_per_s "$3")" 3)" "$(ratio "$(of requests_per_s "$3")" "$2")" \
    "$(number "$(of itl_p50_ms "$3")")" "$(number "$(of attention_slowdown "$3")")" "$(number "$(of reclaimed "$3")")" \
    "$(number "$(of fragmentation_group "$3")")" "$(of preemptions "$3")"
}

parts() {
  printf '## TANGRAM, Llama-3.1-8B on 4 x A100-80 (TP4), %s requests at once, %s tokens out\n' "$requests" "$output"
  for length in short mid long; do
    full=$(result dense "$length")
    base=$(of requests_per_s "$full")
    printf '\n### %s inputs\n\n' "$length"
    printf '| | requests/s | over full KV | itl p50, ms | attention over even shares | reclaimed | group fragmentation | preemptions |\n'
    printf '|---|---|---|---|---|---|---|---|\n'
    row "full KV" "$base" "$full"
    for evicted in 25 50 75; do
      with=("${profile[@]}" "policies.budget_options.ratio=$(ratio $((100 - evicted)) 100)" policies.layout_options.heads_per_group=4
        policies.layout_options.clustering=across_layers)
      released=("${with[@]}" simulation.retained=profile policies.partition=flashinfer)
      row "$evicted %: compress and reclaim, even tables" "$base" "$(result tangram_released "$length" "${released[@]}")"
      row "$evicted %: + ragged tables" "$base" \
        "$(result tangram_released "$length" "${released[@]}" policies.budget_options.uniform_depth=false)"
      row "$evicted %: + reservation" "$base" "$(result tangram "$length" "${with[@]}" policies.partition=flashinfer)"
      row "$evicted %: the same, planned as slowly as in the paper" "$base" \
        "$(result tangram "$length" "${with[@]}" policies.partition=flashinfer policies.partition_options.plan_ns=202500)"
      row "$evicted %: + AOT shares" "$base" "$(result tangram "$length" "${with[@]}" policies.partition=aot)"
      row "$evicted %: the same, pieces for 8 grids" "$base" \
        "$(result tangram "$length" "${with[@]}" policies.partition=aot policies.partition_options.aot_waves=8)"
      row "$evicted %: stream-K instead" "$base" "$(result tangram "$length" "${with[@]}" policies.partition=stream_k)"
      row "$evicted %: uniform splits instead" "$base" "$(result tangram "$length" "${with[@]}" policies.partition=uniform)"
    done
  done

}

# The fraction of prompt steps that compressions take, by part, and the host time per head group that would explain
# the 25 % of prefill that the paper reports for reclaiming (docs/design/methods/tangram.md#numbers).
reclaim() {
  printf '\n## Compressions in prefill: 75 %% evicted, in %% of the time of steps that compute prompts\n\n'
  printf '| | inputs | gate | score, select | moved cells | tables, 0.8 us a group | in all | 25 %% would take, us a group |\n'
  printf '|---|---|---|---|---|---|---|---|\n'
  for length in short mid long; do
    for method in tangram_released tangram; do
      with=("${profile[@]}" policies.budget_options.ratio=0.25 policies.layout_options.heads_per_group=4
        policies.layout_options.clustering=across_layers policies.partition=flashinfer)
      [[ $method == tangram_released ]] && with+=(simulation.retained=profile)
      run=$(result "$method" "$length" "${with[@]}")
      awk -v m="$method" -v l="$length" -v c="$(of compression_capture_s "$run")" -v s="$(of compression_score_s "$run")" \
        -v k="$(of compression_select_s "$run")" -v v="$(of compression_move_s "$run")" -v b="$(of compression_bookkeeping_s "$run")" \
        -v a="$(of prompt_steps_compression_s "$run")" -v p="$(of prompt_steps_s "$run")" 'BEGIN {
          x = b > 0 ? sprintf("%.0f", 0.8 * (0.25 * (p - b) - (a - b)) / (0.75 * b)) : "gives none back"
          n = m == "tangram" ? "reservation" : "compress and reclaim"
          printf("| %s | %s | %.2f | %.2f | %.2f | %.3f | %.2f | %s |\n", n, l, 100 * c / p, 100 * (s + k) / p, 100 * v / p, 100 * b / p, 100 * a / p, x)
        }'
    done
  done
}

groups() {
  printf '\n## Heads per group: 75 %% evicted, mid inputs, AOT shares, pieces for 8 grids\n\n'
  printf '| H_p | tables per request | reclaimed | group fragmentation | attention over even shares | over full KV, 3.2 ns a table | 100 ns | 1000 ns |\n'
  printf '|---|---|---|---|---|---|---|---|\n'
  base=$(of requests_per_s "$(result dense mid)")
  for heads in 1 2 4 8 16 32; do
    cells=()
    for ns in 3.2 100 1000; do
      run=$(result tangram mid "${profile[@]}" policies.budget_options.ratio=0.25 policies.partition=aot policies.partition_options.aot_waves=8 "cost.group_ns=$ns" \
        policies.layout_options.clustering=across_layers "policies.layout_options.heads_per_group=$heads")
      cells+=("$(ratio "$(of requests_per_s "$run")" "$base")")
    done
    printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$heads" $((256 / heads)) "$(number "$(of reclaimed "$run")")" \
      "$(number "$(of fragmentation_group "$run")")" "$(number "$(of attention_slowdown "$run")")" "${cells[@]}"
  done
}

# The terms that limit the throughput, removed one after the other.
terms() {
  local full base with
  full=$(result dense long)
  base=$(of requests_per_s "$full")
  with=("${profile[@]}" policies.budget_options.ratio=0.25 policies.partition=aot policies.partition_options.aot_waves=8
    policies.layout_options.clustering=across_layers policies.layout_options.heads_per_group=4)
  printf '\n## What is between: 75 %% evicted, long inputs\n\n'
  printf '| | requests/s | over full KV | itl p50, ms | attention over even shares | reclaimed | group fragmentation | preemptions |\n'
  printf '|---|---|---|---|---|---|---|---|\n'
  row "AOT shares, pieces for 8 grids" "$base" "$(result tangram long "${with[@]}")"
  with+=(policies.partition_options.priced=never)
  row "no GPU and no block waits for another" "$base" "$(result tangram long "${with[@]}")"
  with+=(policies.budget_options.alpha=0)
  row "... and budgets are means (alpha 0)" "$base" "$(result tangram long "${with[@]}")"
  lengths long 30720 $((4 * output))
  base=$(of requests_per_s "$(result dense long)")
  row "... and four times the output" "$base" "$(result tangram long "${with[@]}")"
}

for part in parts reclaim groups terms; do
  if [[ $wanted == *" $part "* ]]; then "$part"; fi
done
