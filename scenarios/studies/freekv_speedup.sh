#!/usr/bin/env bash
# FreeKV's speed-up over the other methods that recall, by miss rate, and its ablation: the figures of
# docs/design/methods/freekv.md#numbers, predicted by the cost model. Prints Markdown.
#
#   scenarios/studies/freekv_speedup.sh build/dev/bin/kvtwin [MODEL ...]
#
# Time per step is the median gap between tokens (itl), which with four requests excludes steps with prompts.
set -euo pipefail

kvtwin=${1:?the program}
shift
models=("$@")
[[ ${#models[@]} -gt 0 ]] || models=(llama-3.1-8b qwen2.5-7b)
methods=$(cd "$(dirname "${BASH_SOURCE[0]}")/../methods" && pwd)
misses=(0.05 0.1 0.2 0.4 0.7 1.0)

# step METHOD SET...: the median step in ms.
step() {
  local method=$1 row set sets=()
  shift
  for set in "$@"; do sets+=("--set=$set"); done
  row=$("$kvtwin" run "$methods/$method.textproto" --no-write --quiet --format=jsonl "${sets[@]}")
  row=${row#*\"itl_p50_ms\":}
  printf '%s' "${row%%,*}"
}

ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", a / b }'; }
ms() { awk -v a="$1" 'BEGIN { printf "%.1f", a }'; }

speed_up() {  # MODEL TRACE TAU CALLS
  local common=("model.name=$1" model.context_window=40960 "trace.path=$2.csv" "replay.sessions_max=$4") miss
  printf '\n### %s, %s, batch %s (tau %s)\n\n' "$1" "$2" "$4" "$3"
  printf '| miss rate | FreeKV, ms | over ArkVale | ..., a copy per piece | over ShadowKV | over InfiniGen | over all KV on the GPU |\n'
  printf '|---|---|---|---|---|---|---|\n'
  for miss in "${misses[@]}"; do
    local with=("${common[@]}" "simulation.retrieval.miss_rate=$miss") free
    free=$(step freekv "${with[@]}" simulation.retrieval.outcomes=profile "policies.retrieval_options.tau=$3")
    printf '| %s | %s | %s | %s | %s | %s | %s |\n' "$miss" "$(ms "$free")" \
      "$(ratio "$(step arkvale "${with[@]}")" "$free")" \
      "$(ratio "$(step arkvale "${with[@]}" policies.retrieval_options.host_copy=each_piece)" "$free")" \
      "$(ratio "$(step shadowkv "${with[@]}")" "$free")" \
      "$(ratio "$(step infinigen "${with[@]}")" "$free")" \
      "$(ratio "$(step dense "${common[@]}")" "$free")"
  done
}

ablation() {  # MODEL TRACE TAU CALLS MISS
  local with=("model.name=$1" model.context_window=40960 "trace.path=$2.csv" "replay.sessions_max=$4" "simulation.retrieval.miss_rate=$5"
    simulation.retrieval.outcomes=profile "policies.retrieval_options.tau=$3")
  local o=policies.retrieval_options each strided hnd double full
  each=$(step freekv "${with[@]}" $o.speculation=false $o.staging_buffers=1 $o.host_layout=nhd $o.host_copy=each_piece)
  strided=$(step freekv "${with[@]}" $o.speculation=false $o.staging_buffers=1 $o.host_layout=nhd)
  hnd=$(step freekv "${with[@]}" $o.speculation=false $o.staging_buffers=1)
  double=$(step freekv "${with[@]}" $o.speculation=false)
  full=$(step freekv "${with[@]}")
  printf '| %s, %s, batch %s, miss %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" "$2" "$4" "$5" "$(ms "$each")" \
    "$(ms "$strided")" "$(ms "$hnd")" "$(ms "$double")" "$(ms "$full")" "$(ratio "$each" "$hnd")" \
    "$(ratio "$strided" "$hnd")" "$(ratio "$hnd" "$double")" "$(ratio "$double" "$full")"
}

printf '## FreeKV over other methods\n\nPaper: up to 13.7x over ArkVale, 8.4x over ShadowKV; InfiniGen 3.2x / 5.4x (Qwen-7B) and\n'
printf '5.1x / 8.5x (Llama-8B), long input / long generation. A100-40GB, PCIe 4, 32k in / 512 out and 600 in / 16k out.\n'
for model in "${models[@]}"; do
  for requests in 1 4; do
    speed_up "$model" long_input 0.8 "$requests"
    speed_up "$model" long_generation 0.9 "$requests"
  done
done
printf '\n## Ablation\n\nPaper (batch 4): layout up to 10.5x, double buffer 1.2x, speculation 1.9x. Times in ms.\n\n'
printf '| case | NHD, a copy per piece | NHD, strided | HND | + two buffers | + speculation | layout (per piece) | layout (strided) | buffers | speculation |\n'
printf '|---|---|---|---|---|---|---|---|---|---|\n'
for model in "${models[@]}"; do
  for miss in 0.05 0.1 0.2 1.0; do
    ablation "$model" long_input 0.8 4 "$miss"
    ablation "$model" long_generation 0.9 4 "$miss"
  done
done
