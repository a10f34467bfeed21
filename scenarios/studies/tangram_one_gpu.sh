#!/usr/bin/env bash
# TANGRAM on one A100-80 (the paper's GPU; it names four and no sharding), 75 % of the KV entries dropped: throughput
# at capacity next to full KV, what lies between it and the paper's 2.6x, sessions of several turns, and time to the
# first token by load. Predicted by the roofline. Prints Markdown.
#
#   scenarios/studies/tangram_one_gpu.sh build/dev/bin/kvtwin [PART ...]
#
# PART: throughput, terms, turns, load; default: all. tangram.sh has the same model sharded over four GPUs (TP4), with
# each of TANGRAM's parts by itself.
set -euo pipefail

kvtwin=${1:?the program}
shift
wanted=" ${*:-throughput terms turns load} "
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
methods=$here/../methods
. "$here/common.sh"
work_in ""
requests=128

contexts() {  # NAME MEAN OUTPUT: five lengths, 75 to 125 % of the mean
  {
    echo TIMESTAMP,ContextTokens,GeneratedTokens
    for ((i = 0; i < requests; ++i)); do
      echo "2026-01-01 00:00:00.0000000,$(($2 * (6 + i % 5) / 8)),$3"
    done
  } > "$work/$1.csv"
}
contexts long 30720 512
contexts long4 30720 2048
contexts prompts 30720 1

common=(hardware.node=a100-80gb limits.requests_max=512 limits.step_tokens_max=4096 memory.page_tokens=16)
single=(trace.format=azure replay.arrivals=all_at_once limits.prefix_cache=false)
b=policies.budget_options
mapfile -t heads < <(fractions_of "$methods/tangram.textproto")
budget=($b.relative=true "$b.mean=${heads[0]}" "$b.deviation=${heads[1]}" $b.sinks=4 $b.window=32 $b.ratio=0.25
  policies.layout_options.heads_per_group=4 policies.layout_options.clustering=across_layers)
aot=(policies.partition=aot policies.partition_options.aot_waves=8)

of() { run "$methods/$1.textproto" "${common[@]}" "${@:2}"; }                      # METHOD SET...
full() { of dense "${single[@]}" "trace.path=$work/$1.csv" "${@:2}"; }              # LENGTH SET...
reserved() { of tangram "${single[@]}" "trace.path=$work/$1.csv" "${budget[@]}" "${@:2}"; }
released() { of tangram_released "${single[@]}" "trace.path=$work/$1.csv" "${budget[@]}" simulation.retained=profile "${@:2}"; }

# row NAME JSON: over full KV by both of its admissions ($watermark, $full_prompt: requests per second).
row() {
  if [[ $2 == refused:* ]]; then printf '| %s | %s |||||||||\n' "$1" "$2"; return; fi
  local rate
  rate=$(figure requests_per_s "$2")
  printf '| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" "$(number "$rate" 3)" "$(ratio "$rate" "$watermark")" \
    "$(ratio "$rate" "$full_prompt")" "$(number "$(running "$2")" 1)" "$(number "$(figure itl_p50_ms "$2")" 1)" \
    "$(number "$(figure elapsed_s "$2")" 0)" "$(number "$(figure attention_slowdown "$2")" 2)" \
    "$(number "$(figure reclaimed "$2")" 2)" "$(figure preemptions "$2")"
}
running() {  # JSON: requests that run, a mean (Little's law)
  awk -v l="$(figure time_latency_s "$1")" -v q="$(figure time_queue_s "$1")" -v e="$(figure elapsed_s "$1")" \
    'BEGIN { printf "%.3f", (e > 0 ? (l - q) / e : 0) }'
}
head_of() {
  printf '| | requests/s | over full KV, watermark | full prompt | requests that run | itl p50, ms | in all, s | attention over even shares | reclaimed | preemptions |\n'
  printf '|---|---|---|---|---|---|---|---|---|---|\n'
}
bases() {  # LENGTH: sets $json_watermark, $json_full_prompt and their rates
  json_watermark=$(full "$1" limits.admission=watermark)
  json_full_prompt=$(full "$1" limits.admission=full_prompt)
  watermark=$(figure requests_per_s "$json_watermark")
  full_prompt=$(figure requests_per_s "$json_full_prompt")
}

throughput() {
  printf '## Throughput: %s requests at once, 30k in, 512 out\n\n' "$requests"
  printf 'Paper: up to 2.6x. Full KV admits by watermark (vLLM: pages for the next chunk are free) or when the whole prompt fits.\n\n'
  head_of
  bases long
  row "full KV, admission watermark" "$json_watermark"
  row "full KV, admission full_prompt" "$json_full_prompt"
  row "compress and reclaim, even tables" "$(released long policies.partition=flashinfer)"
  row "+ ragged tables" "$(released long policies.partition=flashinfer $b.uniform_depth=false)"
  row "+ reservation" "$(reserved long policies.partition=flashinfer)"
  row "+ AOT shares" "$(reserved long policies.partition=aot)"
  row "the same, pieces for 8 grids" "$(reserved long "${aot[@]}")"
  row "stream-K instead" "$(reserved long policies.partition=stream_k)"
}

# What limits the throughput, removed one after the other.
terms() {
  printf '\n## Term by term\n\nEach row adds its change to the row above.\n\n'
  head_of
  bases long
  row "AOT shares, pieces for 8 grids" "$(reserved long "${aot[@]}")"
  local with=("${aot[@]}" policies.partition_options.priced=never)
  row "no block waits for another" "$(reserved long "${with[@]}")"
  with+=(cost.compressions=free)
  row "scores and compressions take no time" "$(reserved long "${with[@]}")"
  with+=($b.alpha=0)
  row "budgets are means (alpha 0)" "$(reserved long "${with[@]}")"
  bases long4
  row "four times the output, in both" "$(reserved long4 "${with[@]}")"
  printf '\nSeconds of a run, and of the same prompts with one token of output each:\n\n'
  printf '| | in all | prompts | the rest | rest of full KV, watermark, over it |\n|---|---|---|---|---|\n'
  local f=(full full reserved) names=("full KV, watermark" "full KV, full_prompt" TANGRAM) name i all=() prompts=() rest partition
  for name in long long4; do
    for i in 0 1 2; do
      case $i in
        0) partition=() ;;
        1) partition=(limits.admission=full_prompt) ;;
        2) partition=("${aot[@]}") ;;
      esac
      all[i]=$(figure elapsed_s "$(${f[i]} $name "${partition[@]}")")
      prompts[i]=$(figure elapsed_s "$(${f[i]} prompts "${partition[@]}")")
    done
    for i in 0 1 2; do
      rest=$(awk -v a="${all[0]}" -v b="${prompts[0]}" -v c="${all[i]}" -v d="${prompts[i]}" 'BEGIN { printf "%.1f", (a - b) / (c - d) }')
      printf '| %s, %s tokens out | %s | %s | %s | %s |\n' "${names[i]}" \
        "$([[ $name == long ]] && echo 512 || echo 2,048)" "$(number "${all[i]}" 0)" "$(number "${prompts[i]}" 0)" \
        "$(awk -v a="${all[i]}" -v b="${prompts[i]}" 'BEGIN { printf "%.0f", a - b }')" "$rest"
    done
  done
}

# Sessions of several questions about one context; TANGRAM continues from what is left of it.
turns() {
  "$kvtwin" trace synth scbench-like --sessions=48 --seed=3 --set=class=1 --set=window_tokens=65536 --out="$work/turns.kvtrace" > /dev/null 2>&1
  printf '\n## Several turns\n\n48 sessions (scbench-like, class 1, 65,536 tokens at most): 218 questions, contexts of 43k tokens on average.\n\n'
  printf '| sessions at once | | requests/s | over full KV | prefix hits | TTFT, mean | TTFT, p50 | session, s | preemptions |\n'
  printf '|---|---|---|---|---|---|---|---|---|\n'
  local at_once json name base with=(limits.prefix_cache=true "trace.path=$work/turns.kvtrace" trace.format=kvtwin replay.arrivals=fixed_population)
  for at_once in 4 8 12 16 24 48; do
    for name in "full KV" TANGRAM; do
      case $name in
        full*) json=$(of dense "${with[@]}" replay.population=$at_once) && base=$(figure requests_per_s "$json") ;;
        *) json=$(of tangram "${with[@]}" replay.population=$at_once "${budget[@]}" "${aot[@]}" policies.identity=session) ;;
      esac
      printf '| %s | %s | %s | %s | %s %% | %s s | %s s | %s | %s |\n' $at_once "$name" "$(number "$(figure requests_per_s "$json")" 3)" \
        "$(ratio "$(figure requests_per_s "$json")" "$base")" "$(number "$(figure prefix_reuse "$json")" 0 100)" \
        "$(number "$(figure ttft_mean_ms "$json")" 2 0.001)" "$(number "$(figure ttft_p50_ms "$json")" 2 0.001)" \
        "$(number "$(figure session_makespan_mean_ms "$json")" 0 0.001)" "$(figure preemptions "$json")"
    done
  done
}

# The paper's Fig. 14: time to the first token by load, three quarters dropped, 30k on average.
load() {
  printf '\n## Time to the first token by load\n\nRequests of 30k in, 512 out, %s of them at random times (Poisson).\n\n' "$requests"
  printf '| requests/s | full KV, watermark: mean, s | p90, s | full KV, full_prompt: mean, s | p90, s | TANGRAM: mean, s | p90, s |\n'
  printf '|---|---|---|---|---|---|---|\n'
  local rate json cells with=(trace.format=azure limits.prefix_cache=false "trace.path=$work/long.csv" replay.arrivals=poisson)
  for rate in 0.05 0.1 0.15 0.2 0.25 0.3 0.4; do
    cells=
    for json in "$(of dense "${with[@]}" replay.sessions_per_s=$rate)" "$(of dense "${with[@]}" replay.sessions_per_s=$rate limits.admission=full_prompt)" \
      "$(of tangram "${with[@]}" replay.sessions_per_s=$rate "${budget[@]}" "${aot[@]}")"; do
      cells+=" $(number "$(figure ttft_mean_ms "$json")" 1 0.001) | $(number "$(figure ttft_p90_ms "$json")" 1 0.001) |"
    done
    printf '| %s |%s\n' $rate "$cells"
  done
}

for part in throughput terms turns load; do
  if [[ $wanted == *" $part "* ]]; then "$part"; fi
done
