#!/usr/bin/env bash
# Study c: when does it pay to keep the KV of waiting agents in host memory? Varies the think time and the generation
# of PCIe. Real sessions (WEKA, $KVTWIN_DATA). Prints Markdown.
#
#   scenarios/studies/host_offload.sh build/dev/bin/kvtwin [SESSIONS [POPULATION]]
set -euo pipefail

kvtwin=${1:?the program}
sessions=${2:-12}
population=${3:-12}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/common.sh"

common=(model.name=llama-3.1-8b engines.count=1 engines.tensor_parallel=1 hardware.gpus=1
  "replay.sessions_max=$sessions" "replay.population=$population" replay.oversized=reject)
# The H200 node with PCIe of other generations: the measured 55.3 GB/s of generation 5, halved and doubled.
node() {  # NAME BYTES_PER_S
  sed -e "s/^name: .*/name: \"$1\"/" -e "s/^pcie_bytes_per_s { value: [0-9.e+]* basis: MEASURED/pcie_bytes_per_s { value: $2 basis: ASSUMED/" \
    "$here/../../models/node/h200-x8.textproto" > "$work/$1.textproto"
}
node gen3 13825000000
node gen4 27650000000
node gen5 55300000000
node gen6 110600000000

printf '## Host tier of 500 GB beside one H200: Llama-3.1-8B, %s sessions of WEKA, %s in flight\n\n' "$sessions" "$population"
printf '| think time at most, s | host tier | session served, mean, s | against none | TTFT p90, s | prefix reuse | GB in | GB out | waited for copies, whole %% of request time |\n'
printf '|---|---|---|---|---|---|---|---|---|\n'
for think in 1 10 60; do
  base=0
  for generation in none gen3 gen4 gen5 gen6; do
    if [[ $generation == none ]]; then tier=(memory.host_bytes=0 "hardware.node=$work/gen5.textproto")
    else tier=(memory.host_bytes=500000000000 "hardware.node=$work/$generation.textproto"); fi
    json=$(run "$here/../shipped/weka_h200.textproto" "${common[@]}" "${tier[@]}" "replay.think_cap_s=$think")
    if [[ $json == refused:* ]]; then printf '| %s | %s | %s |\n' "$think" "$generation" "$json"; continue; fi
    served=$(figure session_served_mean_ms "$json")
    [[ $generation == none ]] && base=$served
    printf '| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$think" "$generation" "$(number "$served" 0 0.001)" "$(ratio "$base" "$served")" \
      "$(number "$(figure ttft_p90_ms "$json")" 1 0.001)" \
      "$(ratio "$(figure reused_tokens_first "$json")" "$(figure admitted_prompt_tokens "$json")")" \
      "$(number "$(figure transfer_bytes_in "$json")" 0 1e-9)" "$(number "$(figure transfer_bytes_out "$json")" 0 1e-9)" \
      "$(number "$(ratio "$(figure time_transfer_s "$json")" "$(figure time_latency_s "$json")")" 0 100)"
  done
done
