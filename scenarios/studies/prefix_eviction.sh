#!/usr/bin/env bash
# Study e: which cached prefix should be evicted first? All orders at several sizes of memory, each compared with
# Belady's order on the requests of the same run, and with an unlimited cache. Real sessions (WEKA, $KVTWIN_DATA).
# Prints Markdown.
#
#   scenarios/studies/prefix_eviction.sh build/dev/bin/kvtwin [SESSIONS [POPULATION [GIB...]]]
set -euo pipefail

kvtwin=${1:?the program}
sessions=${2:-12}
population=${3:-8}
sizes=${4:-"100 75 50"}
orders="lru lfu session_aware cost_aware tool_ttl"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/common.sh"

common=(model.name=llama-3.1-8b engines.count=1 engines.tensor_parallel=1 hardware.gpus=1 "replay.sessions_max=$sessions"
  "replay.population=$population" replay.oversized=reject limits.page_order=lowest_first)

row() {  # GIB NAME JSON
  local json=$3 prompt bound
  if [[ $json == refused:* ]]; then
    printf '| %s | %s | %s | | | | | |\n' "$1" "$2" "$json"
    return
  fi
  prompt=$(figure admitted_prompt_tokens "$json")
  bound=$(figure reused_tokens_bound "$json")
  printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" "$2" "$(percent "$(figure reused_tokens_first "$json")" "$prompt")" \
    "$([[ $bound == 0 ]] && printf '' || percent "$bound" "$prompt")" "$(number "$(figure ttft_p90_ms "$json")" 1 0.001)" \
    "$(number "$(figure session_served_mean_ms "$json")" 0 0.001)" "$(figure preemptions "$json")" "$(figure requests_rejected "$json")"
}
percent() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f %%", (b > 0 ? 100 * a / b : 0) }'; }

# Runs two at a time; each writes its line of JSON to a file of its own.
start() {  # FILE SET...
  local file=$work/$1
  shift
  while (($(jobs -rp | wc -l) >= 2)); do wait -n; done
  run "$here/../shipped/weka_h200.textproto" "${common[@]}" "$@" > "$file" &
}
start endless memory.gpu_pages=4000000
for gib in $sizes; do
  for order in $orders; do
    # Pages of 64 tokens: 128 KiB a token, 8 MiB a page.
    start "$gib.$order" "memory.gpu_pages=$((gib * 128))" "policies.prefix_eviction=$order" --prefix-bound
  done
done
wait

printf '## Prefix eviction on one H200: Llama-3.1-8B, %s sessions of WEKA, %s in flight, gaps of at most 60 s\n\n' "$sessions" "$population"
printf '| GiB for KV | order | prompt tokens found | found by Belady, same requests | TTFT p90, s | session served, mean, s | preemptions | rejected |\n'
printf '|---|---|---|---|---|---|---|---|\n'
for gib in $sizes; do
  for order in $orders; do row "$gib" "$order" "$(cat "$work/$gib.$order")"; done
done
row "without end" "none goes" "$(cat "$work/endless")"
printf '\nBelady: the pages needed last go, for the admissions and ends that this run had. Another order ends requests at other times,\nso bounds differ from row to row. Rejected requests are larger than the whole pool; their sessions end there.\n'
