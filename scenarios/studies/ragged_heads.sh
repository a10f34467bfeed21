#!/usr/bin/env bash
# Study d: reserved ragged pages against compressing and freeing pages afterwards, for increasingly different budgets of
# heads. Prints Markdown.
#
#   scenarios/studies/ragged_heads.sh build/dev/bin/kvtwin [CALLS]
#
# Heads are of two kinds: one retains 0.25 + s, the other 0.25 - s of its KV entries, so that all together retain a
# quarter. The kinds alternate from head to head, so that neighbours differ, or from layer to layer.
set -euo pipefail

kvtwin=${1:?the program}
requests=${2:-48}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/common.sh"

{
  echo TIMESTAMP,ContextTokens,GeneratedTokens
  for ((i = 0; i < requests; ++i)); do echo "2026-01-01 00:00:00.0000000,$((16384 * (2 + i % 5) / 4)),512"; done
} > "$work/requests.csv"
common=("trace.path=$work/requests.csv" trace.format=azure replay.arrivals=all_at_once hardware.node=h200 hardware.gpus=1
  engines.tensor_parallel=1 model.name=llama-3.1-8b limits.requests_max=256 limits.step_tokens_max=4096
  limits.prefix_cache=false memory.page_tokens=16 memory.gpu_pages=0)

shares() {  # SPREAD RUN: by layer, then head; RUN heads of one kind, then RUN of the other
  awk -v s="$1" -v n="$2" 'BEGIN { for (i = 0; i < 256; ++i) printf "%s%.3f", (i > 0 ? "," : ""), 0.25 + (int(i / n) % 2 ? -s : s) }'
}
zeros=$(awk 'BEGIN { for (i = 0; i < 256; ++i) printf "%s0", (i > 0 ? "," : "") }')

row() {  # SPREAD NAME METHOD SET...
  local spread=$1 name=$2 method=$3 json
  shift 3
  json=$(run "$here/../methods/$method.textproto" "${common[@]}" "$@")
  if [[ $json == refused:* ]]; then printf '| %s | %s | %s |\n' "$spread" "$name" "$json"; return; fi
  printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$spread" "$name" "$(number "$(figure requests_per_s "$json")" 3)" \
    "$(number "$(figure ttft_p90_ms "$json")" 1 0.001)" "$(number "$(figure reclaimed "$json")" 2)" \
    "$(number "$(figure fragmentation_group "$json")" 2)" "$(number "$(figure fragmentation_tail "$json")" 3)" "$(figure preemptions "$json")"
}

part() {  # TITLE RUN
  printf '\n### %s\n\n| spread | | requests/s | TTFT p90, s | reclaimed | group fragmentation | tail | preemptions |\n|---|---|---|---|---|---|---|---|\n' "$1"
  for spread in 0 0.08 0.16 0.24; do
    profile=(policies.budget_options.relative=false "policies.budget_options.mean=$(shares "$spread" "$2")" "policies.budget_options.deviation=$zeros"
      policies.budget_options.ratio=0.25 policies.budget_options.sinks=4 policies.budget_options.window=32 simulation.retained=profile
      policies.layout_options.heads_per_group=4)
    row "$spread" "reclaimed afterwards, one depth for all" tangram_released "${profile[@]}"
    row "$spread" "reclaimed afterwards, ragged" tangram_released "${profile[@]}" policies.budget_options.uniform_depth=false
    row "$spread" "reserved, neighbours share a table" tangram "${profile[@]}" policies.layout_options.clustering=adjacent
    row "$spread" "reserved, heads that are alike share a table" tangram "${profile[@]}" policies.layout_options.clustering=across_layers
  done
}

printf '## A quarter kept, by heads that differ more and more: Llama-3.1-8B on one H200, %s requests of 8k to 24k at once\n\n' "$requests"
printf '| | | requests/s | TTFT p90, s | reclaimed | group fragmentation | tail | preemptions |\n|---|---|---|---|---|---|---|---|\n'
row - "full KV" dense
part 'Neighbours differ' 1
part 'Layers differ' 8
