#!/usr/bin/env bash
# Study: what IntentKV's memory adds where one goal is refined over turns, and where questions are independent. Prints
# Markdown.
#
#   scenarios/studies/refined_goal.sh build/dev/bin/kvtwin [QUESTIONS]
#
# refined_goal comes back to four facts of a goal, multi_key asks for any fact. A twelfth to three quarters of a session
# of 384 tokens are retained. Every cell is paired with `query`, the rule without a memory, question by question.
set -euo pipefail

kvtwin=$(realpath "${1:?the program}")
questions=${2:-504}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sets=$work/sets
. "$here/common.sh"

# set_of NAME OPTION: IntentKV's rule with this option
set_of() { policy_set "$1" intentkv "s#scorer: \"intent_rule\"#&\n  scorer_options { $2 }#"; }
set_of query 'mode: "query"'
set_of raw 'query_norm: "raw"'
for gamma in 0.5 0.9 1; do set_of "unit_$gamma" "gamma: $gamma"; done
for gamma in 0.5 0.9 1; do set_of "max_$gamma" "memory: \"max_over_turns\" gamma: $gamma"; done
policy_set full full

for task in refined_goal multi_key; do
  "$kvtwin" evaluate "$sets"/*.textproto --tasks="$task" --budgets=32,64,96,192,288 --questions="$questions" --per-session=12 \
    --paired=query --jobs="$(nproc)" --quiet --out="$work/$task" > "$work/$task.txt"
  echo "## $task: exact answers of $questions questions, 12 to a session"
  echo
  echo '```'
  cat "$work/$task.txt"
  echo '```'
  echo
done
