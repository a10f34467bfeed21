#!/usr/bin/env bash
# The papers' performance figures that one GPU can show: predicted by the simulator, measured by the CUDA engine, and
# joined in one table. Weights are random, so outcomes that values would decide are forced
# (docs/design/backend-interface-and-digest.md#outcomes).
#
#   scenarios/studies/headlines.sh KVTWIN list                        parts, cases, predicted seconds
#   scenarios/studies/headlines.sh KVTWIN predict > CSV               all cases on the simulator
#   scenarios/studies/headlines.sh KVTWIN measure WORK [PART ...]     cases on the GPU at hand; CSV in WORK/measured.csv
#   scenarios/studies/headlines.sh KVTWIN smoke [WORK [PART ...]]     cases cut to a few steps, on BACKEND (cuda)
#   scenarios/studies/headlines.sh KVTWIN table [MEASURED]            Markdown: paper, predicted, measured, why they differ
#   scenarios/studies/headlines.sh KVTWIN today [PART ...]            times by today's prices, beside those predicted and measured
#   scenarios/studies/headlines.sh KVTWIN replay [WORK]               recordings: same decisions; steps beside today's prices
#
# predict, list, table, today and replay are of $NODE, h200 (the default) or h100. WORK holds a folder for each case, with its
# recording; cases that it holds are not run again, so a session may end after any of them. A part takes at most 8
# minutes of an H200. PROFILE=FILE prices today's times by that device file. headlines/predicted_NODE.csv are
# predictions made before the measurement: `predict`, with the prices of models/measured of that day. MEASURED is
# headlines/measured_NODE.csv, and replay's WORK the folder of the committed recordings, if they are not named.
set -euo pipefail

kvtwin=${1:?the program} command=${2:?list, predict, measure, smoke, table, today or replay}
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
own=$here/headlines
methods=$here/../methods
node=${NODE:-h200}
predicted=$own/predicted_$node.csv
measured=$own/measured_$node.csv
recorded=$here/../../tests/golden/$node/headlines
. "$here/common.sh"

parts=(freekv_input freekv_generation intentkv intentkv_slots intentkv_h2o triaxial triaxial_packed tangram tangram_dense tangram_released
  tangram_watermark)

# case PART: sets case_names, and for each name its scenario and SETs in case_args (by lines).
declare -A case_args
case_names=()
add() {  # NAME SCENARIO SET...
  local name=$1
  shift
  case_names+=("$name")
  case_args[$name]=$(printf '%s\n' "$@")
}
cases() {  # PART
  local method window=("trace.path=$own/generation_16k.csv" replay.arrivals=recorded)
  case_names=() case_args=()
  case $1 in
    freekv_input) for method in freekv arkvale resident; do add $method "$own/$method.textproto"; done ;;
    freekv_generation) for method in freekv arkvale resident; do add $method "$own/$method.textproto" "${window[@]}"; done ;;
    intentkv) for method in intentkv snapkv; do add $method "$own/$method.textproto"; done ;;
    intentkv_slots) add snapkv_stays "$own/intentkv.textproto" policies.scorer=snapkv ;;
    intentkv_h2o) add h2o "$own/h2o.textproto" ;;
    triaxial) for method in bf16 triaxial; do triaxial $method; done ;;
    triaxial_packed) for method in int4 kivi_int2; do triaxial $method; done ;;
    tangram) tangram reserved tangram ;;
    tangram_released)
      local quarter=("memory.gpu_pages=$((16 * gpu_pages))" replay.requests_max=32)
      tangram reserved_quarter tangram "${quarter[@]}"
      tangram released_quarter tangram_released simulation.retained=profile simulation.force_outcomes=true "${quarter[@]}"
      ;;
    tangram_dense) contexts dense dense memory.gpu_pages="$gpu_pages" limits.admission=full_prompt ;;
    tangram_watermark) contexts dense_watermark dense memory.gpu_pages="$gpu_pages" ;;
    *) echo "headlines.sh: no part $1; there are: ${parts[*]}" >&2; exit 2 ;;
  esac
}
# The KV memory of an H100 beside these weights, as in the paper, on whatever GPU.
triaxial() {  # PRECISION
  local sets=("policies.precision=$1" "memory.gpu_fraction=$small_fraction")
  # KIVI was not calibrated: the roofline prices it.
  [[ $1 == kivi_int2 ]] && sets+=(cost.profile=)
  add "$1" "$own/triaxial.textproto" "${sets[@]}"
}
contexts() {  # NAME METHOD SET...: 128 requests of 30k on the GPU's memory; a page of all heads has 2 MiB
  local name=$1 method=$2
  shift 2
  add "$name" "$methods/$method.textproto" model.context_window=65536 hardware.node=this hardware.otherwise=h200 cost.profile=this \
    "trace.path=$own/contexts_30k.csv" trace.format=azure replay.arrivals=all_at_once limits.requests_max=128 \
    limits.step_tokens_max=4096 limits.prefix_cache=false memory.page_tokens=16 "$@"
}
tangram() {  # NAME METHOD SET...
  local b=policies.budget_options l=policies.layout_options heads
  mapfile -t heads < <(fractions_of "$methods/tangram.textproto")
  contexts "${@:1:2}" $b.relative=true "$b.mean=${heads[0]}" "$b.deviation=${heads[1]}" $b.sinks=4 $b.window=32 $b.ratio=0.25 \
    $l.heads_per_group=4 $l.clustering=across_layers "memory.gpu_pages=$((64 * gpu_pages))" "${@:3}"
}

# KV pages beside 8B weights, and the fraction of memory that leaves about an H100's KV pages beside 32B weights.
memory_of() {  # NODE
  case $1 in
    h200) gpu_pages=50000 small_fraction=0.507 ;;
    h100) gpu_pages=24000 small_fraction=0.88 ;;  # the engine's own buffers need more than a tenth
    *) echo "headlines.sh: GPU $1; its parts are cut for h200 and h100" >&2; exit 2 ;;
  esac
}
gpu_at_hand() { nvidia-smi --query-gpu=name --format=csv,noheader | awk '/H200/ { print "h200"; exit } /H100/ { print "h100"; exit } { print; exit }'; }

# one NAME FOLDER OPTION...: runs a case; prints its line of JSON.
one() {
  local args set sets=() name=$1 folder=$2
  shift 2
  mapfile -t args <<< "${case_args[$name]}"
  for set in "${args[@]:1}"; do sets+=("--set=$set"); done
  "$kvtwin" run "${args[0]}" --out="$folder" --force --quiet --format=jsonl "${sets[@]}" "$@"
}

figures=(elapsed_s requests_per_s output_tokens_per_s ttft_mean_ms itl_p50_ms session_makespan_mean_ms preemptions gpu_tokens
  prefix_reuse reads_raw reads_effective reads_peak_effective gpu_pages_held_mean time_host_s)

# rows PART NAME FOLDER JSON: its figures as CSV. step_ms: the least time per output token among requests that arrived
# together, i.e. of the one that no prompt delayed; by prompt length.
rows() {
  local key
  for key in "${figures[@]}"; do printf '%s,%s,%s,%s\n' "$1" "$2" "$key" "$(figure "$key" "$4")"; done
  printf '%s,%s,running,%s\n' "$1" "$2" "$(awk -v l="$(figure time_latency_s "$4")" -v q="$(figure time_queue_s "$4")" \
    -v e="$(figure elapsed_s "$4")" 'BEGIN { printf "%.3f", (e > 0 ? (l - q) / e : 0) }')"
  printf '%s,%s,busy_s,%s\n' "$1" "$2" "$(awk -v e="$(figure elapsed_s "$4")" -v b="$(figure busy "$4")" 'BEGIN { printf "%.2f", e * b }')"
  [[ $1 != freekv* ]] || awk -F, -v part="$1" -v name="$2" '
    NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
    { p = $at["prompt_tokens"]; t = ($at["finished_ns"] - $at["first_token_ns"]) / ($at["output_tokens"] - 1) / 1e6
      if (!(p in least)) { order[++n] = p; least[p] = t } else if (t < least[p]) least[p] = t }
    END { for (i = 1; i <= n; ++i) printf "%s,%s,step_ms_%d,%.4f\n", part, name, order[i], least[order[i]] }' "$3/requests.csv"
}

# each_case FUNCTION PART...: calls FUNCTION PART NAME.
each_case() {
  local f=$1 part name
  shift
  for part in "$@"; do
    cases "$part"
    for name in "${case_names[@]}"; do "$f" "$part" "$name"; done
  done
}
predict_case() {
  local more=("--set=hardware.otherwise=$node")
  # A case that names its own prices keeps them.
  [[ -z ${PROFILE:-} || ${case_args[$2]} == *cost.profile=* ]] || more+=("--set=cost.profile=$(realpath "$PROFILE")")
  rows "$1" "$2" "$work/$2" "$(one "$2" "$work/$2" --backend=sim "${more[@]}")"
}
measure_case() {
  local folder=$work/$1/$2
  if [[ ! -s $folder/row.jsonl ]]; then
    mkdir -p "$folder"
    printf '%s %s: starts\n' "$1" "$2" >&2
    local begun=$SECONDS
    one "$2" "$folder/run" --backend=cuda --clock=wall --record > "$folder/row.partial"
    mv "$folder/row.partial" "$folder/row.jsonl"
    printf '%s %s: %d s\n' "$1" "$2" $((SECONDS - begun)) >&2
  fi
  rows "$1" "$2" "$folder/run" "$(< "$folder/row.jsonl")"
}
# A few short requests of every case that is a run of another kind; models of 8B.
smoke_case() {
  [[ $1 != freekv_generation && $1 != tangram_watermark ]] || return 0
  local all=${case_args[$2]} begun=$SECONDS json short=(--set=model.name=llama-3.1-8b)
  [[ $1 != intentkv* ]] || short+=(--set=replay.requests_max=3)
  [[ $1 != triaxial* ]] || short+=(--set=replay.requests_max=2 --set=memory.gpu_fraction=0.5)
  [[ $1 != tangram* ]] || short+=("--set=trace.path=$own/smoke.csv" "--set=memory.gpu_pages=$([[ $all == *relative* ]] && echo 64000 || echo 1000)")
  [[ $1 != freekv_input ]] || short+=("--set=trace.path=$own/smoke.csv")
  [[ $all != */freekv.* && $all != */arkvale.* ]] || short+=(--set=memory.host_bytes=2000000000)
  [[ ${BACKEND:-cuda} == sim ]] && short+=(--backend=sim) || short+=(--backend=cuda --clock=wall)
  if ! json=$(one "$2" "$work/$1-$2" --allow-unread "${short[@]}"); then
    printf '%-18s %-16s failed after %d s\n' "$1" "$2" $((SECONDS - begun))
    failed=1
    return 0
  fi
  printf '%-18s %-16s %3d s  %3d requests finished, %5d steps, itl %.2f ms\n' "$1" "$2" $((SECONDS - begun)) \
    "$(figure requests_finished "$json")" "$(figure steps "$json")" "$(figure itl_p50_ms "$json")"
}

# Joins headlines/papers.csv with predictions and, if there are some, measurements; then each case's times.
table() {  # [MEASURED]
  local from=${1:-}
  [[ -n $from || ! -f $measured ]] || from=$measured
  awk -F, -v predicted="$predicted" -v measured="$from" '
    function load(path, into, order,   line, f) {
      if (path == "") return
      while ((getline line < path) > 0) {
        split(line, f, ",")
        into[f[1] "," f[2] "," f[3]] = f[4]
        order[++order[0]] = line
      }
      close(path)
    }
    # "PART CASE FIGURE", or two of them for a ratio
    function value(of, from,   w, n) {
      n = split(of, w, " ")
      if (!((w[1] "," w[2] "," w[3]) in from)) return "-"
      if (n == 3) return sprintf(from[w[1] "," w[2] "," w[3]] < 100 ? "%.2f" : "%d", from[w[1] "," w[2] "," w[3]])
      if (!((w[4] "," w[5] "," w[6]) in from) || from[w[4] "," w[5] "," w[6]] == 0) return "-"
      return sprintf("%.2fx", from[w[1] "," w[2] "," w[3]] / from[w[4] "," w[5] "," w[6]])
    }
    # "predicted | measured | error" of a figure
    function pair(key, digits) {
      if (!(key in m)) return sprintf("%.*f | - | -", digits, p[key])
      return sprintf("%.*f | %.*f | %+.1f %%", digits, p[key], digits, m[key], 100 * (p[key] / m[key] - 1))
    }
    BEGIN {
      lines[0] = none[0] = 0
      load(predicted, p, lines)
      load(measured, m, none)
      print "| figure | paper | predicted | measured | why they differ |\n|---|---|---|---|---|"
    }
    /^#/ || NF < 3 { next }
    {
      why = $4
      for (i = 5; i <= NF; ++i) why = why "," $i
      if ($3 == "weights") { printf "| %s | %s | needs real weights | needs real weights | %s |\n", $1, $2, why; next }
      printf "| %s | %s | %s | %s | %s |\n", $1, $2, value($3, p), value($3, m), why
    }
    END {
      print "\nEach case: seconds in which the engine was busy, and the median time between tokens of a request.\n"
      print "| part | case | predicted s | measured s | error | predicted ms | measured ms | error |\n|---|---|---|---|---|---|---|---|"
      for (i = 1; i <= lines[0]; ++i) {
        split(lines[i], f, ",")
        at = f[1] "," f[2] ","
        if (f[3] == "busy_s") printf "| %s | %s | %s | %s |\n", f[1], f[2], pair(at "busy_s", 1), pair(at "itl_p50_ms", 2)
      }
      print "\nFreeKV, steps of the request that no prompt delays.\n"
      print "| part | case | prompt | predicted ms | measured ms | error |\n|---|---|---|---|---|---|"
      for (i = 1; i <= lines[0]; ++i) {
        split(lines[i], f, ",")
        if (f[3] ~ /^step_ms_/) printf "| %s | %s | %s | %s |\n", f[1], f[2], substr(f[3], 9), pair(f[1] "," f[2] "," f[3], 2)
      }
    }' "$own/papers.csv"
}

# A recorded case, replayed: decisions must be the same; its steps are priced as today.
replay_case() {
  local args set sets=(--set="hardware.otherwise=$node") folder=$recordings/$1/$2/run from=$work/$1-$2 out
  [[ -s $folder/log.binpb ]] || return 0
  mapfile -t args <<< "${case_args[$2]}"
  for set in "${args[@]:1}"; do sets+=("--set=$set"); done
  mkdir -p "$from/$(basename "${args[0]}" .textproto)"
  ln -s "$folder" "$from/$(basename "${args[0]}" .textproto)/0"
  out=$("$kvtwin" validate "${args[0]}" "${sets[@]}" --recorded="$from" --quiet 2>&1) || true
  awk -v part="$1" -v name="$2" '
    /same decisions  1 of 1/ { same = 1; steps = $8 }
    /decodes only|with chunks/ { sub(/^.*: median /, ""); of[++n] = $0 }
    END {
      printf "| %s | %s | %s | %s | %s |\n", part, name, same ? steps : "other decisions", of[1], of[2]
      exit !same
    }' <<< "$out" || { failed=1; printf '%s\n' "$out" >&2; }
}

# Seconds in which the engine is busy: as predicted then, as today's prices have them, as measured.
today() {  # PREDICTION
  [[ -f $measured ]] || { echo "headlines.sh: nothing is measured on $node: no $measured" >&2; exit 2; }
  awk -F, '
    function error(of) { return sprintf("%+.1f %%", 100 * (of / measured[at] - 1)) }
    FNR == 1 { ++file }
    $3 != "busy_s" { next }
    file == 1 { measured[$1 "," $2] = $4 }
    file == 2 { before[$1 "," $2] = $4 }
    file == 3 {
      at = $1 "," $2
      if (at in measured) printf "| %s | %s | %.1f | %s | %.1f | %s | %.1f |\n", $1, $2, before[at], error(before[at]), $4, error($4), measured[at]
    }
    BEGIN { print "| part | case | predicted s | error | by today\x27s prices s | error | measured s |\n|---|---|---|---|---|---|---|" }
    ' "$measured" "$predicted" "$1"
}

listing() {
  awk -F, '$3 == "busy_s" { printf "%-18s %-16s %4d s\n", $1, $2, $4; sum += $4 } END { printf "%-35s %4d s, without starts\n", "in all", sum }' \
    "$predicted"
}

case $command in
  list) listing ;;
  predict)
    work_in ""
    memory_of "$node"
    echo part,case,figure,value
    each_case predict_case "${parts[@]}"
    ;;
  measure)
    work_in "${1:?a folder for the runs}"
    shift
    [[ $# -gt 0 ]] || set -- "${parts[@]}"
    memory_of "$(gpu_at_hand)"
    for part in "$@"; do each_case measure_case "$part" > "$work/$part.rows"; done
    cat "$work"/*.rows > "$work/measured.csv"
    ;;
  smoke)
    work_in "${1:-}"
    shift $(($# < 1 ? $# : 1))
    [[ $# -gt 0 ]] || set -- "${parts[@]}"
    memory_of h100
    failed=0
    each_case smoke_case "$@"
    exit $failed
    ;;
  table) table "${1:-}" ;;
  today)
    [[ $# -gt 0 ]] || set -- "${parts[@]}"
    work_in ""
    memory_of "$node"
    each_case predict_case "$@" > "$work/today.csv"
    today "$work/today.csv"
    ;;
  replay)
    recordings=$(realpath "${1:-$recorded}")
    [[ -d $recordings ]] || { echo "headlines.sh: no folder $recordings" >&2; exit 2; }
    work_in ""
    memory_of "$node"
    failed=0
    printf '| part | case | steps | decodes: error, median, p95, mean | with chunks |\n|---|---|---|---|---|\n'
    each_case replay_case "${parts[@]}"
    exit $failed
    ;;
  *) echo "headlines.sh: command $command; there are: list, predict, measure, smoke, table, today, replay" >&2; exit 2 ;;
esac
