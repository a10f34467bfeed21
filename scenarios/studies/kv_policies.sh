#!/usr/bin/env bash
# Study a: which KV policy serves Claude-Code-like agents best on one H200, if all have the same bytes for KV?
# Real sessions (WEKA, $KVTWIN_DATA). Prints markdown.
#
#   scenarios/studies/kv_policies.sh build/dev/scenarios/kvtwin [SESSIONS [POPULATION]]
set -euo pipefail

kvtwin=${1:?the program}
sessions=${2:-12}
population=${3:-12}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/common.sh"

# The same GPU, so the same bytes: what is left beside the weights. Calls that never fit are listed as rejected.
common=(model.name=llama-3.1-8b model.context_window=1048576 hardware.node=h200 memory.page_tokens=32
  'trace.path=$KVTWIN_DATA/weka-claude-code/traces_710.tar.xz' trace.format=weka "replay.sessions_max=$sessions"
  replay.mode=closed_loop replay.arrivals=fixed_population "replay.population=$population" replay.think_cap_s=60
  replay.oversized=reject limits.calls_max=64 limits.step_tokens_max=4096)

row() {  # NAME SCENARIO SET...
  local name=$1 scenario=$2 json
  shift 2
  json=$(run "$here/../methods/$scenario.textproto" "${common[@]}" "$@")
  if [[ $json == refused:* ]]; then
    printf '| %s | %s | | | | | | |\n' "$name" "$json"
    return
  fi
  local prompt reused
  prompt=$(figure admitted_prompt_tokens "$json")
  reused=$(figure reused_tokens_first "$json")
  printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$name" "$(number "$(figure session_served_mean_ms "$json")" 0 0.001)" \
    "$(number "$(figure ttft_p90_ms "$json")" 1 0.001)" "$(number "$(figure tpot_p95_ms "$json")" 1)" \
    "$(number "$(ratio "$reused" "$prompt")" 2)" "$(figure gpu_pages "$json")" "$(figure preemptions "$json")" "$(figure calls_rejected "$json")"
}

printf '## Claude Code sessions on one H200: Llama-3.1-8B, %s sessions of WEKA, %s in flight\n\n' "$sessions" "$population"
printf '| policy | session served, mean, s | TTFT p90, s | TPOT p95, ms | prefix reuse | pages of 32 (or of a head group) | preemptions | rejected |\n'
printf '|---|---|---|---|---|---|---|---|\n'
keep=(limits.prefix_cache=true)
row "all KV, bf16" dense "${keep[@]}"
row "the same without a prefix cache" dense limits.prefix_cache=false
row "fp8" fp8 "${keep[@]}"
row "int4" int4 "${keep[@]}"
row "KIVI int2" kivi "${keep[@]}"
row "TriAxialKV" triaxial "${keep[@]}"
row "all KV, bf16, 500 GB of host tier" dense "${keep[@]}" memory.host_bytes=500000000000 hardware.node=h200-x8 hardware.gpus=1
row "Quest, 4,096 tokens read" quest policies.retrieval_options.budget_tokens=4096 limits.prefix_cache=false
row "FreeKV, 4,096 tokens read" freekv policies.retrieval_options.budget_tokens=4096 memory.host_bytes=500000000000 hardware.node=h200-x8 hardware.gpus=1
row "SnapKV, a quarter kept" snapkv policies.budget=ratio policies.budget_options.ratio=0.25
row "StreamingLLM, 4,096 tokens" streaming_llm policies.budget_options.cells=4096
printf '\nWithout a prefix cache every turn computes its whole context again: methods that drop or move cells need `prefix_cache: false` here,\nand an agent'"'"'s next prompt is its last one and a little more. Quality is not in this table.\n'
