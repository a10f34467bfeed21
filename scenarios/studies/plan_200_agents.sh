#!/usr/bin/env bash
# Study b: one H200, two H100 or four L40S for 200 concurrent coding agents? Prints Markdown.
#
#   scenarios/studies/plan_200_agents.sh build/dev/bin/kvtwin [AGENTS]
#
# The trace is synthesised here. All steps are priced by rooflines: the H200's efficiencies are measured, and the
# other devices are assumed to have the same.
set -euo pipefail

kvtwin=${1:?the program}
agents=${2:-200}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$kvtwin" trace synth coding-agent-like --set=window_tokens=120000 --set=requests_max=12 --sessions=$((agents * 2)) --seed=7 --out="$work/agents.kvtrace" > /dev/null

plan() {  # TITLE VARY...
  local title=$1 vary words=()
  shift
  for vary in "$@"; do words+=("--vary=$vary"); done
  printf '\n### %s\n\n```\n' "$title"
  "$kvtwin" plan "$here/../shipped/coding_agents_small.textproto" --slo='ttft_p95<5s' --slo='tpot_p95<40ms' \
    --load="replay.population=$((agents / 50))..$((agents * 2))" "--need=$agents" --allow-roofline --quiet --seeds=2 \
    --out="$work/plan" "--set=trace.path=$work/agents.kvtrace" --set=replay.arrivals=fixed_population \
    --set=replay.mode=closed_loop --set=replay.think_cap_s=600 --set=hardware.nodes=0 \
    --set=engines.routing=prefix_aware "${words[@]}" || true
  printf '```\n'
}
printf '## %s concurrent coding agents, Llama-3.1-8B: TTFT p95 below 5 s, TPOT p95 below 40 ms\n' "$agents"
plan 'One engine per GPU' hardware.node=h200,h100,l40s engines.count=1,2,4
plan 'What a format adds' hardware.node=h200,h100 engines.count=1,2 policies.precision=bf16,fp8
