#!/usr/bin/env bash
# Study e: which cached prefix should go first? LRU and LFU beside what a cache without end would find, which no
# order of eviction can pass. Real sessions (WEKA, $KVTWIN_DATA). Prints markdown.
#
#   scenarios/studies/prefix_eviction.sh build/dev/scenarios/kvtwin [SESSIONS]
set -euo pipefail

kvtwin=${1:?the program}
sessions=${2:-24}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/common.sh"

common=(model.name=llama-3.1-8b engines.count=1 engines.tensor_parallel=1 hardware.gpus=1 "replay.sessions_max=$sessions"
  limits.page_order=lowest_first)
printf '## Prefix eviction on one H200: Llama-3.1-8B, %s sessions of WEKA, gaps of at most 60 s\n\n' "$sessions"
printf '| in flight | eviction | prefix reuse | of what an endless cache finds | TTFT p90, s | session served, mean, s |\n|---|---|---|---|---|---|\n'
for population in 4 8; do
  endless=$(run "$here/../weka_h200.textproto" "${common[@]}" "replay.population=$population" memory.gpu_pages=4000000)
  best=$(ratio "$(figure reused_tokens_first "$endless")" "$(figure admitted_prompt_tokens "$endless")")
  for eviction in lru lfu endless; do
    json=$endless
    [[ $eviction == endless ]] ||
      json=$(run "$here/../weka_h200.textproto" "${common[@]}" "replay.population=$population" replay.oversized=reject "policies.prefix_eviction=$eviction")
    reuse=$(ratio "$(figure reused_tokens_first "$json")" "$(figure admitted_prompt_tokens "$json")")
    printf '| %s | %s | %s | %s | %s | %s |\n' "$population" "$eviction" "$reuse" "$(ratio "$reuse" "$best")" \
      "$(number "$(figure ttft_p90_ms "$json")" 1 0.001)" "$(number "$(figure session_served_mean_ms "$json")" 0 0.001)"
  done
done
printf '\nThe endless cache is a bound on reuse at other times of arrival: a run that waits less sends its calls earlier.\n'
