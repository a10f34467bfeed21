#!/usr/bin/env bash
# Study: what IntentKV's memory adds where one goal is refined over turns, and where questions are independent. Prints
# Markdown.
#
#   scenarios/studies/refined_goal.sh build/dev/bin/kvtwin [QUESTIONS] [WORK]
#
# refined_goal comes back to four facts of a goal, asked_again to facts that were asked for while their document was the
# newest, multi_key asks for any fact. With --drop-turns a turn's question and answer leave the context when it ends, so
# that earlier turns hold no answers. A twelfth to three quarters of a session of 384 tokens are retained. Every cell is
# paired with `query`, the rule without a memory, question by question. Environment: PARTS=dropped,kept.
set -euo pipefail

kvtwin=$(realpath "${1:?the program}")
questions=${2:-504} parts=${PARTS:-dropped,kept}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"
work_in "${3:-}"
sets=$work/sets

# set_of NAME OPTION: IntentKV's rule with this option
set_of() { policy_set "$1" intentkv "s#scorer: \"intent_rule\"#&\n  scorer_options { $2 }#"; }
set_of query 'mode: "query"'
set_of raw 'query_norm: "raw"'
for gamma in 0.5 0.9 1; do set_of "unit_$gamma" "gamma: $gamma"; done
for gamma in 0.5 0.9 1; do set_of "max_$gamma" "memory: \"max_over_turns\" gamma: $gamma"; done
policy_set residual intent_residual
policy_set full full

# ask TITLE TASK BUDGETS SETS OPTION...
ask() {
  local files=()
  for set in $4; do files+=("$sets/$set.textproto"); done
  echo "## $1: exact answers of $questions questions, 12 to a session"
  echo
  echo '```'
  "$kvtwin" evaluate "${files[@]}" --tasks="$2" --budgets="$3" --questions="$questions" --per-session=12 \
    --paired=query --jobs="$(nproc)" --quiet --out="$work/${1// /_}" "${@:5}"
  echo '```'
  echo
}
kept='full max_0.5 max_0.9 max_1 query raw unit_0.5 unit_0.9 unit_1' dropped='max_0.9 query residual unit_0.9'
[[ $parts != *dropped* ]] || ask 'refined_goal, turns dropped' refined_goal 64 "$dropped" --drop-turns
[[ $parts != *dropped* ]] || ask 'asked_again, turns dropped' asked_again 64 "$dropped" --drop-turns
[[ $parts != *kept* ]] || ask refined_goal refined_goal 32,64,96,192,288 "$kept"
[[ $parts != *kept* ]] || ask multi_key multi_key 32,64,96,192,288 "$kept"
