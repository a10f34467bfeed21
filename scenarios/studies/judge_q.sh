#!/usr/bin/env bash
# Study: Judge Q's soft tokens by their number, loss and budget, next to SnapKV, the window-based H2O that the paper
# compares with, PyramidKV, the oracle and chance: hit rates, then answers. Prints Markdown.
#
#   scenarios/studies/judge_q.sh build/dev/bin/kvtwin [QUESTIONS] [WEIGHTS] [WORK]
#
# The soft tokens are trained on tasks that are not asked here, on responses of the model itself. Sessions have 2,048
# tokens and one question, and 1 and 5 % of them are retained (hit rates also 2 %), the last 8 tokens included.
# WEIGHTS is the folder of judge_q_{4,8,16,32,64}.safetensors (the paper's squared error) and
# judge_q_kl_32.safetensors (divergence).
set -euo pipefail

kvtwin=$(realpath "${1:?the program}")
questions=${2:-32}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
weights=$(realpath "${3:-$here/../../models/tiny/tasks-6x256}")
. "$here/common.sh"
work_in "${4:-}"
sets=$work/sets tokens=2048 tasks=multi_key,variable_tracking

for set in full random snapkv h2o_window pyramidkv judge_q_oracle; do policy_set $set $set; done
for file in "$weights"/judge_q_*.safetensors; do
  name=$(basename "$file" .safetensors)
  policy_set "$name" judge_q "s#renormalise: true#& probe_tokens: ${name##*_}#" \
    "s#scorer_weights: \"[^\"]*\"#scorer_weights: \"$file\"#"
done

# hits TASK NAME SCORERS: rows of the hit rates with the soft tokens NAME, in $work/TASK-NAME.hits
hits() {
  "$kvtwin" inspect-policy "$sets/$2.textproto" --set=trace.path="$work/$1.kvtrace" --set=trace.format=kvtwin \
    --set=replay.arrivals=all_at_once --scorers="$3" --budgets=20,41,102 --contexts=16 --context-min=1500 --window=8 \
    --response=4 --error-tokens=4 | sed "s/^  judge_q  /  $2  /" > "$work/$1-$2.hits"
}
export -f hits
export kvtwin sets work
for task in ${tasks//,/ }; do
  "$kvtwin" trace make-task $task --sessions=32 --questions=1 --tokens=$tokens --seed=1 --out="$work/$task.kvtrace" > /dev/null
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

echo "## Exact answers, %, of $questions questions in sessions of $tokens tokens, by entries per head"
echo
echo '[95 % interval]; then each policy set paired with SnapKV, question by question.'
echo
echo '```'
"$kvtwin" evaluate "$sets"/*.textproto --tasks=$tasks --budgets=20,102 --tokens=$tokens --questions="$questions" \
  --per-session=1 --paired=snapkv --jobs="$(nproc)" --quiet --out="$work/out"
echo '```'
