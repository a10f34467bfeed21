#!/usr/bin/env bash
# FreeKV's speed-up over the other methods that recall, by miss rate, and its ablation: the figures of
# docs/design/methods/freekv.md#numbers, predicted by the cost model. Prints Markdown.
#
#   scenarios/studies/freekv_speedup.sh build/dev/bin/kvtwin [MODEL ...]
#
# Time per step is the median gap between tokens (itl), which with four requests excludes steps with prompts.
# Recalls are those of the CUDA engine, a kernel that reads the host's memory, unless a column names copies.
# RaaS and RazorAttention drop instead of recalling. Each read about FreeKV's 2,048 tokens: RaaS in every head;
# RazorAttention all tokens in 15 % of the heads, spread evenly over the layers, and 2,048 in the others.
set -euo pipefail

kvtwin=${1:?the program}
shift
models=("$@")
[[ ${#models[@]} -gt 0 ]] || models=(llama-3.1-8b qwen2.5-7b)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
methods=$here/../methods
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
misses=(0.05 0.1 0.2 0.4 0.7 1.0)

# row METHOD SET...: the run as one line of JSON. METHOD is a name of scenarios/methods, or a path.
row() {
  local scenario=$1 set sets=()
  shift
  [[ $scenario == */* ]] || scenario=$methods/$scenario.textproto
  for set in "$@"; do sets+=("--set=$set"); done
  "$kvtwin" run "$scenario" --no-write --quiet --format=jsonl "${sets[@]}"
}
figure() {  # KEY JSON
  local at=${2#*\"$1\":}
  printf '%s' "${at%%[,\}]*}"
}
step() { figure itl_p50_ms "$(row "$@")"; }  # METHOD SET...: the median step in ms

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
  local o=policies.retrieval_options each strided hnd double plain full
  each=$(step freekv "${with[@]}" $o.speculation=false $o.staging_buffers=1 $o.host_layout=nhd $o.host_copy=each_piece)
  strided=$(step freekv "${with[@]}" $o.speculation=false $o.staging_buffers=1 $o.host_layout=nhd $o.host_copy=strided)
  hnd=$(step freekv "${with[@]}" $o.speculation=false $o.staging_buffers=1 $o.host_copy=strided)
  double=$(step freekv "${with[@]}" $o.speculation=false $o.host_copy=strided)
  plain=$(step freekv "${with[@]}" $o.speculation=false)
  full=$(step freekv "${with[@]}")
  printf '| %s, %s, batch %s, miss %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" "$2" "$4" "$5" \
    "$(ms "$each")" "$(ms "$strided")" "$(ms "$hnd")" "$(ms "$double")" "$(ms "$plain")" "$(ms "$full")" \
    "$(ratio "$each" "$hnd")" "$(ratio "$strided" "$hnd")" "$(ratio "$hnd" "$double")" "$(ratio "$double" "$plain")" \
    "$(ratio "$plain" "$full")"
}

by_copies() {  # MODEL TRACE TAU CALLS MISS: the price of recalls
  local with=("model.name=$1" model.context_window=40960 "trace.path=$2.csv" "replay.sessions_max=$4" "simulation.retrieval.miss_rate=$5")
  local free=(simulation.retrieval.outcomes=profile "policies.retrieval_options.tau=$3") copies=policies.retrieval_options.host_copy=strided
  local kernel old
  kernel=$(step freekv "${with[@]}" "${free[@]}")
  old=$(step freekv "${with[@]}" "${free[@]}" $copies)
  printf '| %s, %s, batch %s, miss %s | %s | %s | %s | %s |\n' "$1" "$2" "$4" "$5" "$(ms "$old")" "$(ms "$kernel")" \
    "$(ratio "$(step arkvale "${with[@]}" $copies)" "$old")" "$(ratio "$(step arkvale "${with[@]}")" "$kernel")"
}

# heads MODEL KEY: a number of the model's description.
heads() { awk -v key="$2:" '$1 == key { print $2; exit }' "$here/../../models/llm/$1.textproto"; }

# razor MODEL: writes RazorAttention's policy set, with 15 % of the heads retaining everything.
razor() {
  local all=$(($(heads "$1" layers) * $(heads "$1" kv_heads))) mask
  mask=$(awk -v n="$all" 'BEGIN { k = int(0.15 * n + 0.5); for (i = 0; i < k; ++i) printf "%s%d", i ? ", " : "", int(i * n / k) }')
  sed -e 's/scorer: "duo_attention"/scorer: "razor_attention"/' -e "/full_heads: \[/,/\]/c\    full_heads: [ $mask ]" \
    "$methods/duo_attention.textproto" > "$work/razor.textproto"
}

held() { awk -v a="$1" 'BEGIN { printf "%.1f", 100 * a }'; }

dropping() {  # MODEL TRACE TAU CALLS
  local model=("model.name=$1" model.context_window=40960) b=policies.budget_options name json free
  local host=("trace.path=$2.csv" "replay.sessions_max=$4" simulation.retrieval.miss_rate=0.1
    simulation.retrieval.outcomes=profile "policies.retrieval_options.tau=$3")
  local gpu=("trace.path=$methods/$2.csv" trace.format=azure "replay.sessions_max=$4" replay.arrivals=all_at_once
    memory.page_tokens=32)
  razor "$1"
  free=$(step freekv "${model[@]}" "${host[@]}")
  for name in "all KV on the GPU" RaaS "RazorAttention, balanced" "RazorAttention, heads split alike" "FreeKV, 10 % missed"; do
    case $name in
      all*) json=$(row dense "${model[@]}" "${gpu[@]}") ;;
      RaaS) json=$(row raas "${model[@]}" "${gpu[@]}" $b.kv_entries=2048 $b.sinks=512 $b.window=512 $b.interval=32) ;;
      Razor*) json=$(row "$work/razor.textproto" "${model[@]}" "${gpu[@]}" $b.sinks=512 $b.window=1536 \
        "policies.partition=$([[ $name == *balanced ]] && echo flashinfer || echo uniform)") ;;
      FreeKV*) json=$(row freekv "${model[@]}" "${host[@]}") ;;
    esac
    printf '| %s, %s, batch %s | %s | %s | %s | %s |\n' "$1" "$2" "$4" "$name" "$(ms "$(figure itl_p50_ms "$json")")" \
      "$(ratio "$(figure itl_p50_ms "$json")" "$free")" "$(held "$(figure gpu_pages_held_fraction "$json")")"
  done
}

printf '## FreeKV over other methods\n\nPaper: up to 13.7x over ArkVale, 8.4x over ShadowKV; InfiniGen 3.2x / 5.4x (Qwen-7B) and\n'
printf '5.1x / 8.5x (Llama-8B), long input / long generation. A100-40GB, PCIe 4, 32k in / 512 out and 600 in / 16k out.\n'
for model in "${models[@]}"; do
  for requests in 1 4; do
    speed_up "$model" long_input 0.8 "$requests"
    speed_up "$model" long_generation 0.9 "$requests"
  done
done
printf '\n## Recalls by copies and by a kernel\n\n'
printf 'Outputs of this study before 2026-11-27 priced recalls as one copy of a copy engine per page of a head (16 KB, 2.55 us of\n'
printf 'the engine each). The CUDA engine recalls by one kernel per layer, which reads the host at 0.92 of the rate of PCIe: that is the\n'
printf 'price now. Recalls are shorter, so FreeKV gains less over ArkVale by hiding them, and more over ShadowKV and InfiniGen,\n'
printf 'whose values and tokens are still moved by copy engines.\n\n'
printf '| case | FreeKV by copies, ms | by a kernel, ms | over ArkVale, by copies | by a kernel |\n|---|---|---|---|---|\n'
for model in "${models[@]}"; do
  for requests in 1 4; do
    for miss in 0.1 0.4 1.0; do
      by_copies "$model" long_input 0.8 "$requests" "$miss"
      by_copies "$model" long_generation 0.9 "$requests" "$miss"
    done
  done
done
printf '\n## Methods that drop\n\n'
printf 'RaaS and RazorAttention move nothing. RaaS holds 2,048 entries of every head and reads them: 512 sinks, the last 512\n'
printf 'tokens and those used last, chosen again after every 32 tokens. RazorAttention holds and reads all tokens in 15 %% of the\n'
printf 'heads, spread evenly, and 512 sinks and the last 1,536 tokens in the others. FreeKV holds summaries of all pages and\n'
printf '2,048 tokens of every head on the GPU, and all pages on the host. Pages held: mean over the run, prompts included.\n'
printf 'Balanced: attention is split by lengths (partition flashinfer). Split alike, a step waits for the heads that read all.\n\n'
printf '| case | method | step, ms | over FreeKV | pages held, %% of all |\n|---|---|---|---|---|\n'
for model in "${models[@]}"; do
  for requests in 1 4; do
    dropping "$model" long_input 0.8 "$requests"
    dropping "$model" long_generation 0.9 "$requests"
  done
done
printf '\n## Ablation\n\nPaper (batch 4): layout up to 10.5x, double buffer 1.2x, speculation 1.9x. Times in ms. Columns up to two buffers copy\n'
printf 'by copy engines; kernel: the recall of the other tables, without speculation; then with it.\n\n'
printf '| case | NHD, a copy per piece | NHD, strided | HND, strided | + two buffers | kernel | + speculation | layout (per piece) | layout (strided) | buffers | kernel | speculation |\n'
printf '|---|---|---|---|---|---|---|---|---|---|---|---|\n'
for model in "${models[@]}"; do
  for miss in 0.05 0.1 0.2 1.0; do
    ablation "$model" long_input 0.8 4 "$miss"
    ablation "$model" long_generation 0.9 4 "$miss"
  done
done
