#!/usr/bin/env bash
# Study: Judge Q's soft tokens by their number, loss and budget, next to SnapKV, the window-based H2O that the paper
# compares with, PyramidKV, the oracle and chance: hit rates, then answers. Prints Markdown.
#
#   scenarios/studies/judge_q.sh build/dev/bin/kvtwin [QUESTIONS] [WEIGHTS] [WORK]
#
# The soft tokens are trained on tasks that are not asked here, on responses of the model itself. Sessions have one
# question; 1, 2 and 5 % of them are retained, the last 8 tokens included. WEIGHTS is the folder of judge_q_N.safetensors
# (the paper's squared error) and judge_q_kl_N.safetensors (divergence). Environment:
#   MODEL=tasks-6x256 TOKENS=2048 TASKS=multi_key,variable_tracking
#   SOFTMAX=prompt    soft tokens rank by attention that is renormalised over the prompt; kernel: by a serving
#                     kernel's, which they share. CUDA computes the latter alone
#   BACKEND=cpu BATCH=8 JOBS=(cores) CONTEXTS=16 (of the hit rates) BUDGETS=1,5 (of the answers, %)
#   PARTS=hits,answers PER_SESSION=1 (questions of a session, for the answers)
set -euo pipefail
shopt -s nullglob

kvtwin=$(realpath "${1:?the program}")
questions=${2:-32}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
model=${MODEL:-tasks-6x256} tokens=${TOKENS:-2048} softmax=${SOFTMAX:-prompt} backend=${BACKEND:-cpu} batch=${BATCH:-8}
weights=$(realpath "${3:-$here/../../models/tiny/$model}")
. "$here/common.sh"
work_in "${4:-}"
sets=$work/sets tasks=${TASKS:-multi_key,variable_tracking} contexts=${CONTEXTS:-16}
parts=${PARTS:-hits,answers} jobs=${JOBS:-$(nproc)}

entries() { awk -v t="$tokens" -v p="$1" 'BEGIN { printf "%d", t * p / 100 + 0.5 }'; }
budgets=$(for percent in $(tr , ' ' <<< "${BUDGETS:-1,5}"); do entries "$percent"; echo; done | paste -sd,)
of_model="s#tasks-6x256\\([\"./]\\)#$model\\1#g"
for set in full random snapkv h2o_window pyramidkv; do policy_set $set $set "$of_model"; done
[[ $backend != cpu ]] || policy_set judge_q_oracle judge_q_$([[ $softmax == prompt ]] || echo sliced_)oracle "$of_model"
for file in "$weights"/judge_q_*.safetensors; do
  name=$(basename "$file" .safetensors)
  policy_set "$name" judge_q "$of_model" \
    "s#renormalise: true#renormalise: $([[ $softmax == prompt ]] && echo true || echo false) probe_tokens: ${name##*_}#" \
    "s#scorer_weights: \"[^\"]*\"#scorer_weights: \"$file\"#"
done

# hits TASK NAME SCORERS: rows of the hit rates with the soft tokens NAME, in $work/TASK-NAME.hits
hits() {
  [[ ! -s $work/$1-$2.hits ]] || return 0
  "$kvtwin" inspect-policy "$sets/$2.textproto" --set=trace.path="$work/$1.kvtrace" --set=trace.format=kvtwin \
    --set=replay.arrivals=all_at_once --scorers="$3" --budgets="$hit_budgets" --contexts="$contexts" \
    --context-min=$((tokens * 3 / 4)) --context-max="$tokens" --window=8 --response=4 --error-tokens=4 |
    sed "s/^  judge_q  /  $2  /" > "$work/$1-$2.hits.part"
  mv "$work/$1-$2.hits.part" "$work/$1-$2.hits"
}
hit_budgets=$(entries 1),$(entries 2),$(entries 5)
export -f hits
export kvtwin sets work hit_budgets contexts tokens

hit_rates() {
  local task file
  for task in ${tasks//,/ }; do
    "$kvtwin" trace make-task "$task" --sessions=32 --questions=1 --tokens="$tokens" --seed=1 \
      --out="$work/$task.kvtrace" > /dev/null
  done
  {
    for task in ${tasks//,/ }; do
      for file in "$sets"/judge_q_*[0-9].textproto; do echo "hits $task $(basename "$file" .textproto) judge_q"; done
      echo "hits $task snapkv oracle,snapkv,random"
    done
  } | xargs -P "$(nproc)" -L 1 bash -euo pipefail -c '"$0" "$@"'
  for task in ${tasks//,/ }; do
    echo "## Hit rates of $task"
    echo
    echo '```'
    cat "$work/$task-snapkv.hits"
    for file in "$work/$task"-judge_q_*.hits; do tail -n +2 "$file"; done
    echo '```'
    echo
  done
}
answers() {
  echo "## Exact answers, %, of $questions questions in sessions of $tokens tokens, by entries per head"
  echo
  echo '[95 % interval]; then each policy set paired with SnapKV, question by question.'
  echo
  echo '```'
  "$kvtwin" evaluate "$sets"/*.textproto --tasks="$tasks" --budgets="$budgets" --tokens="$tokens" \
    --questions="$questions" --per-session="${PER_SESSION:-1}" --paired=snapkv --backend="$backend" --batch="$batch" \
    --jobs="$jobs" --set=memory.gpu_pages=$((batch * tokens / 8 + 4000)) --quiet --out="$work/out"
  echo '```'
}
[[ $parts != *hits* ]] || hit_rates
[[ $parts != *answers* ]] || answers
