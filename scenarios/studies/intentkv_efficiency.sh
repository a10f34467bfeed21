#!/usr/bin/env bash
# IntentKV's efficiency (its Tables 2, 3 and 7): {SnapKV, H2O, IntentKV} where retained KV entries move together
# (compact: nothing of a turn is reused) and where slots stay (the next turn finds its prefix), with all KV beside them.
# Agents that search (bcp-like), Qwen3-8B on one H200, tools and thinking without time. Predicted by the roofline, so
# that all rows have prices of one kind. The last table has what an H200 measured of eight such sessions
# (headlines.sh, headlines/measured_h200.csv). Prints Markdown.
#
#   scenarios/studies/intentkv_efficiency.sh build/dev/bin/kvtwin [SESSIONS]
#
# Wall: time of a session. Reads: KV entries that decodes read, in millions per session: raw as if nothing were dropped,
# and effective.
set -euo pipefail

kvtwin=${1:?the program}
sessions=${2:-24}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"
work_in ""
"$kvtwin" trace synth bcp-like --sessions="$sessions" --seed=3 --out="$work/searches.kvtrace" > /dev/null 2>&1
p=policies
common=("trace.path=$work/searches.kvtrace" hardware.node=h200 cost.profile= limits.requests_max=64)

case_of() {  # SCORER SLOTS BUDGET SET...
  local sets=("$p.scorer=$1" "$p.budget_options.kv_entries=$3")
  case $2 in
    stay) sets+=($p.layout=slot_mask memory.page_tokens=1 memory.gpu_pages=700000) ;;
    move) sets+=($p.layout=compact $p.identity=none limits.prefix_cache=false $p.budget_options.sinks_free=false memory.gpu_pages=43750) ;;
  esac
  run "$here/headlines/intentkv.textproto" "${common[@]}" "${sets[@]}" "${@:4}"
}
all_kv() {
  run "$here/headlines/resident.textproto" "${common[@]}" model.name=qwen3-8b model.context_window=131072 trace.format=kvtwin \
    replay.mode=closed_loop replay.tool_scale=0 replay.think_scale=0 memory.page_tokens=16 memory.gpu_pages=43750 \
    limits.prefix_cache=true "$@"
}

# row NAME SLOTS PAPER-WALL PAPER-RAW ALONE TOGETHER: JSON of a session at a time, and of eight
row() {
  printf '| %s | %s | %s | %s | %s | %s | %s | %s %% | %s | %s | %s | %s | %s |\n' "$1" "$2" "$3" "$4" \
    "$(number "$(figure session_makespan_mean_ms "$5")" 1 0.001)" "$(number "$(figure session_makespan_p99_ms "$5")" 1 0.001)" \
    "$(number "$(figure session_makespan_mean_ms "$6")" 1 0.001)" "$(number "$(figure prefix_reuse "$6")" 0 100)" \
    "$(number "$(figure ttft_mean_ms "$6")" 0)" "$(number "$(figure reads_raw "$6")" 1 "$(awk -v n="$sessions" 'BEGIN { print 1e-6 / n }')")" \
    "$(number "$(figure reads_effective "$6")" 1 "$(awk -v n="$sessions" 'BEGIN { print 1e-6 / n }')")" \
    "$(number "$(figure reads_peak_raw "$6")" 1 0.001)" "$(number "$(figure reads_peak_effective "$6")" 1 0.001)"
}
rows() {  # NAME SLOTS PAPER-WALL PAPER-RAW COMMAND...
  local at=(replay.arrivals=fixed_population)
  row "$1" "$2" "$3" "$4" "$("${@:5}" "${at[@]}" replay.population=1)" "$("${@:5}" "${at[@]}" replay.population=8)"
}

printf '%s sessions; paper: Qwen3-8B at 8k, wall in s and raw reads in M of a question, retriever and model servers included.\n' "$sessions"
for budget in 8192 16384; do
  printf '\n## %s KV entries of history\n\n' "$budget"
  printf '| scorer | slots | wall, paper | raw, paper | wall alone, s | slowest | wall of 8 at once, s | prefix hits | TTFT of 8, ms | raw reads | effective reads | largest decode, k: raw | effective |\n'
  printf '|---|---|---|---|---|---|---|---|---|---|---|---|---|\n'
  known() { [[ $budget == 8192 ]] && printf '%s' "$1"; return 0; }
  rows "all KV" - "" "" all_kv
  rows SnapKV move "$(known 279.3)" "$(known 77.1)" case_of snapkv move $budget
  rows SnapKV stay "$(known 155.5)" "$(known 46.9)" case_of snapkv stay $budget
  rows H2O move "$(known 281.4)" "$(known 77.2)" case_of h2o_prefill move $budget
  rows H2O stay "$(known 150.9)" "$(known 40.7)" case_of h2o_prefill stay $budget
  rows IntentKV move "" "" case_of intent_rule move $budget
  rows IntentKV stay "$(known 140.4)" "$(known 31.6)" case_of intent_rule stay $budget
done

# measured PART CASE SCORER SLOTS PAPER-WALL PAPER-RAW PAPER-EFFECTIVE PAPER-LARGEST: a case of headlines.sh
measured() {
  awk -F, -v part="$1" -v name="$2" -v head="$3 | $4 | $5" -v raw="$6" -v effective="$7" -v largest="$8" -v sessions=8 '
    $1 != part || $2 != name { next }
    FNR == NR { p[$3] = $4; next }
    { m[$3] = $4 }
    END {
      M = 1e6 * sessions
      printf "| %s | %.1f | %.1f | %.1f | %.0f %% | %.0f | %s | %.1f | %s | %.1f | %s | %.1f |\n", head, p["elapsed_s"],
        m["elapsed_s"], m["session_makespan_mean_ms"] / 1e3, 100 * m["prefix_reuse"], m["ttft_mean_ms"], raw,
        m["reads_raw"] / M, effective, m["reads_effective"] / M, largest, m["reads_peak_effective"] / 1e3
    }' "$here/headlines/predicted_h200.csv" "$here/headlines/measured_h200.csv"
}
printf '\n## Measured on one H200\n\n'
printf 'Eight sessions at once, 8,192 KV entries of history (headlines.sh, parts intentkv and intentkv_slots). Paper: Tables 2, 3 and 7.\n\n'
printf '| scorer | slots | wall, paper | wall of all 8, predicted s | measured s | a session, measured s | prefix hits | TTFT, ms | raw reads, paper | measured | effective reads, paper | measured | largest decode, paper, k | measured |\n'
printf '|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n'
measured intentkv snapkv SnapKV move 279.3 77.1 "" ""
measured intentkv_slots snapkv_stays SnapKV stay 155.5 46.9 "" ""
measured intentkv intentkv IntentKV stay 140.4 31.6 39.8 10.2
printf '\nH2O that moves was stopped after 260 s without an end: no figure. Worst case of the paper (Table 3, 14B): 92.3k to 20.5k.\n'
