#!/usr/bin/env bash
# Study: FreeKV's answers, corrected heads and recalled pages by tau, on long answers. Prints Markdown.
#
#   scenarios/studies/freekv_tau.sh build/dev/bin/kvtwin [QUESTIONS] [CHECKPOINT] [WORK]
#
# CHECKPOINT is a folder that models/train/train.py wrote, its shape beside it as CHECKPOINT.textproto; the default was
# trained so that neighbouring queries are alike (train.py --smooth). FreeKV speculates that a step needs the pages that
# the step before chose; heads whose queries have a cosine below tau choose again. The fraction corrected is therefore
# the distribution of the cosines. Pages have 16 tokens, the first layer is dense, the window has 64 tokens. A cell that
# corrects more than 60 % says nothing about speculation (docs/design/methods/freekv.md) and is marked.
#
# A page that leaves the window can be read again one step later, because the step before did not choose it. A window of
# 32 tokens, which a question of 18 leaves while its answer needs it, is asked too (freekv_0.9_window_32).
set -euo pipefail

kvtwin=$(realpath "${1:?the program}")
questions=${2:-24}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkpoint=$(realpath "${3:-$here/../../models/tiny/tasks-smooth-6x256}")
. "$here/common.sh"
work_in "${4:-}"
sets=$work/sets

# set_of NAME FROM WINDOW [OPTION]: a policy set with this model
set_of() {
  policy_set "$1" "$2" "s#window_tokens: 32#window_tokens: $3#" "s#layers_dense: 1#& ${4:-}#" \
    "s#model { name: \"[^\"]*\"#model { name: \"$checkpoint.textproto\"#" "s#checkpoint: \"[^\"]*\"#checkpoint: \"$checkpoint\"#"
}
set_of full full 0
set_of quest quest_long 64
for tau in 0 0.8 0.9 0.95 2; do set_of "freekv_$tau" freekv_long 64 "tau: $tau"; done
set_of freekv_0.9_window_32 freekv_long 32 'tau: 0.9'

# ask TASK TOKENS QUESTIONS PER-SESSION BUDGETS
ask() {
  local out=$work/$1-$2
  echo "## $1, sessions of $2 tokens"
  echo
  echo '```'
  "$kvtwin" evaluate "$sets"/*.textproto --tasks="$1" --budgets="$5" --tokens="$2" --questions="$3" \
    --per-session="$4" --paired=freekv_2 --jobs="$(nproc)" --quiet --out="$out"
  echo '```'
  echo
  echo '| policy set | budget | exact answers, % | loss per token | corrected, % | pages recalled of those chosen, % |'
  echo '|---|---|---|---|---|---|'
  awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
    function percent(name) { return $at[name] == "" ? "-" : sprintf("%.1f", 100 * $at[name]) }
    { mark = $at["correction_rate"] > 0.6 ? " (speculates hardly at all)" : ""
      printf "| %s | %s | %s [%.0f %.0f] | %.4f | %s%s | %s |\n", $at["policy"], $at["budget"], percent("accuracy"),
      100 * $at["accuracy_low"], 100 * $at["accuracy_high"], $at["token_loss"], percent("correction_rate"), mark,
      percent("miss_rate") }' "$out/quality.csv"
  echo
}
echo "Cosines of neighbouring queries: .96 to .97 in the default model. The paper: .82 and more, 17 to 52 % corrected at tau .9."
echo
ask long_list 2048 "$((questions * 4))" 4 512
ask repeat 512 "$((questions * 2))" 1 128
ask repeat 2048 "$questions" 1 512
