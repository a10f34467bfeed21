#!/usr/bin/env bash
# Study: a document is compressed once, before its questions are known, and several questions are answered from
# what is left: the regime of TANGRAM's quality figures. Prints Markdown.
#
#   scenarios/studies/compressed_once.sh build/dev/bin/kvtwin [QUESTIONS]
#
# The document is one chunk of 384 tokens. It is compressed when it ends (chunk_end), and later turns of the session
# continue from its prefix checkpoint. "A question at a time": earlier turns are not in the context. Reserved budgets are
# calibrated on split `train` of the same task, and asked on split `test`. The columns are sized for equal bytes: of the
# document a twelfth and a sixth are retained, the last 8 tokens included.
set -euo pipefail

kvtwin=$(realpath "${1:?the program}")
questions=${2:-252}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sets=$here/../quality per_session=6 tokens=$((384 + 6 * 7))
once=(--set=limits.prefix_cache=true --set=policies.identity=session --set=policies.layout=ragged
  --set=policies.scorer_options.compression_trigger=chunk_end --set=policies.budget_options.chunk_tokens=384)

# calibrate TASK NAME OPTION...: writes $work/TASK-NAME.textproto, the fractions that heads retain of the gate's best.
calibrate() {
  local task=$1 name=$2
  "$kvtwin" calibrate policy budgets "$sets/fastkvzip_asked.textproto" --set=trace.path="$work/$task.kvtrace" \
    --set=trace.format=kvtwin --set=replay.arrivals=all_at_once --sinks=0 --window=8 --contexts=24 --context-min=250 \
    "${@:3}" --out="$work/$task-$name.textproto" > /dev/null
}
# cell TASK SET BUDGET OPTION...: "correct [low high] (retained)"
cell() {
  local task=$1 set=$2 budget=$3 out
  out=$(mktemp -d -p "$work")
  "$kvtwin" evaluate "$sets/$set.textproto" --tasks="$task" --budgets="$budget" --questions="$questions" \
    --tokens="$tokens" --per-session="$per_session" "${once[@]}" "${@:4}" --allow-unread --quiet --out="$out" > /dev/null
  awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
    $at["refused"] != "" { printf "refused"; next }
    { printf "%.1f [%.0f %.0f] (%.1f %%)", 100 * $at["accuracy"], 100 * $at["accuracy_low"], 100 * $at["accuracy_high"],
      100 * $at["kv_fraction"] }' "$out/quality.csv"
}
# row TITLE SET SMALL LARGE OPTION...
row() {
  local task line="| $1"
  for task in multi_key variable_tracking; do
    line+=" | $(cell "$task" "$2" "$3" "${@:5}") | $(cell "$task" "$2" "$4" "${@:5}")"
  done
  echo "$line |"
}

for task in multi_key variable_tracking; do
  "$kvtwin" trace make-task "$task" --split=train --sessions=48 --questions=6 --tokens=$tokens --seed=11 \
    --out="$work/$task.kvtrace" > /dev/null
done

echo "## A document of 384 tokens, compressed once before its questions: exact answers, %, of $questions questions"
echo
echo '[95 % interval] (retained fraction of the KV that full KV reads)'
echo
echo '| policy | `multi_key`, a twelfth | a sixth | `variable_tracking`, a twelfth | a sixth |'
echo '|---|---|---|---|---|'
row 'random, uniform' random 32 64 --set=policies.budget_options.window=8
row 'SnapKV, uniform' snapkv 32 64 --set=policies.scorer_options.window_closed=true
row 'Expected Attention, uniform' expected_attention 32 64
row 'Expected Attention, by score within a layer' dynamic_keydiff 32 64 --set=policies.scorer=expected_attention
row 'Expected Attention, by score across layers' dynamic_keydiff 32 64 --set=policies.scorer=expected_attention \
  --set=policies.budget=top_across_layers --set=policies.layout_options.clustering=across_layers
row 'KeyDiff, uniform' keydiff 32 64
row 'gate, uniform' fastkvzip_asked 32 64
row 'gate, by score within a layer' dynamic_gate 32 64
row 'gate, by score across layers' dynamic_gate 32 64 --set=policies.budget=top_across_layers \
  --set=policies.layout_options.clustering=across_layers
alone=(--drop-turns --set=policies.layout_options.clustering=across_layers)
row 'KVzip, by score within a layer, a question at a time' kvzip 32 64 --drop-turns --set=policies.budget=top_per_layer \
  --set=policies.layout_options.clustering=adjacent
row 'KVzip, by score across layers, a question at a time' kvzip 32 64 "${alone[@]}"
row 'the same, 4 heads a table' kvzip 32 64 "${alone[@]}" --set=policies.layout_options.heads_per_group=4

# Each ratio has a profile of its own. SIZES: of multi_key, or of both tasks as 24,57:20,43; "-" is left out.
reserved() {  # TITLE PROFILE-OPTION SIZES OPTION...
  local title=$1 how=$2 sizes=$3 task own line="| $1" budget ratio
  for task in multi_key variable_tracking; do
    [[ $task == multi_key ]] && own=${sizes%:*} || own=${sizes#*:}
    for budget in ${own/,/ }; do
      [[ $budget != - ]] || { line+=' | -'; continue; }
      ratio=$(awk -v b="$budget" 'BEGIN { printf "%.4f", b / 384 }')
      calibrate "$task" "$how$ratio" --ratio="$ratio" $how
      line+=" | $(cell "$task" tangram_gate "$budget" \
        --set=policies.budget_options.profile="$work/$task-$how$ratio.textproto" "${@:4}")"
    done
  done
  echo "$line |"
}
reserved 'gate, reserved within a layer' '' 24,57
reserved 'gate, reserved across layers' --all-layers 24,57
reserved 'the same, alpha 2' --all-layers 24,57 --set=policies.budget_options.alpha=2
reserved 'the same, alpha 2, bytes as above' --all-layers 19,51 --set=policies.budget_options.alpha=2
reserved 'reserved across layers, 2 heads a table' --all-layers 24,57 --set=policies.layout_options.heads_per_group=2 \
  --set=policies.layout_options.clustering=across_layers
reserved 'reserved across layers, 4 heads a table' --all-layers 24,57 --set=policies.layout_options.heads_per_group=4 \
  --set=policies.layout_options.clustering=across_layers
# 8 heads that share a table retain more than a twelfth of multi_key at any size.
reserved '4 heads a table, bytes as one head' --all-layers 12,44:20,43 --set=policies.layout_options.heads_per_group=4 \
  --set=policies.layout_options.clustering=across_layers
reserved '8 heads a table, bytes as one head' --all-layers -,35:15,31 --set=policies.layout_options.heads_per_group=8 \
  --set=policies.layout_options.clustering=across_layers
