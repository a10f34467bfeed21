#!/usr/bin/env bash
# Study: exact answers over TriAxialKV's bits per value, on a task whose tags differ in use. Prints Markdown.
#
#   scenarios/studies/triaxial_bits.sh build/dev/bin/kvtwin [QUESTIONS] [WORK]
#
# newest_result has talk, old results and one result that is asked about. For each number of bits a map is calibrated on
# split `train` (12 sessions, seed 11), with all axes and without the temporal or the semantic one, and asked on split
# `test`. Tags are read from token ids (replay.chat_template). Few sets of tags are ever chosen: a set is asked once, and the table names the tags with 4 bits that tokens of
# the calibration have.
set -euo pipefail

kvtwin=$(realpath "${1:?the program}")
questions=${2:-252}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"
work_in "${3:-}"
sets=$here/../quality

"$kvtwin" trace make-task newest_result --split=train --sessions=12 --questions=4 --seed=11 --tokens=1024 \
  --out="$work/newest.kvtrace" > /dev/null

# calibrate BITS BLIND: the map $work/map-BITS-BLIND.textproto
calibrate() {
  [[ ! -s $work/map-$1-$2.textproto ]] || return 0
  "$kvtwin" calibrate policy precision "$sets/triaxial.textproto" --set=trace.path="$work/newest.kvtrace" \
    --set=trace.format=kvtwin --set=replay.arrivals=all_at_once --set=replay.chat_template=tasks --bits="$1" --contexts=6 \
    --context-min=700 --layers=3 --rows=16 --blind="$2" --out="$work/map-$1-$2.textproto" > /dev/null
}
choice() { grep '^four_bit_tags' "$1" | md5sum | cut -c1-8; }
# ask NAME SET OPTION...: "correct [low high] | bytes" in $work/NAME.cell
ask() {
  "$kvtwin" evaluate "$sets/$2.textproto" --tasks=newest_result --questions="$questions" --tokens=1024 \
    --set=replay.chat_template=tasks "${@:3}" --quiet --out="$work/$1" > /dev/null
  awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
    { printf "%.1f [%.0f %.0f] | %.3f", 100 * $at["accuracy"], 100 * $at["accuracy_low"], 100 * $at["accuracy_high"],
      $at["kv_bytes_mean"] / 1e6 }' "$work/$1/quality.csv" > "$work/$1.cell"
}
chosen() { ask "$(choice "$1")" triaxial_newest --set=policies.precision_options.tag_map="$1"; }
uniform() { ask "$1" "$1"; }
in_parallel() { xargs -P "$(nproc)" -L 1 bash -euo pipefail -c '"$0" "$@"'; }

bits=(2.3 2.4 2.5 2.6 2.7 2.8 2.9 3.0 3.1 3.2 3.3)
export -f ask calibrate choice chosen uniform
export kvtwin questions sets work
for b in "${bits[@]}"; do printf 'calibrate %s %s\n' "$b" none "$b" temporal "$b" semantic; done | in_parallel
{
  printf 'uniform %s\n' full int4 int2
  declare -A seen=()
  for map in "$work"/map-*.textproto; do
    key=$(choice "$map")
    [[ -n ${seen[$key]:-} ]] || echo "chosen $map"
    seen[$key]=1
  done
} | in_parallel

# four_bits MAP: the tags of tokens of the calibration that have 4 bits
four_bits() {
  awk 'BEGIN { split("older turn_m2 turn_m1 current", turn, " ")
      split("inst user assistant reasoning tool_call obs delim", kind, " ") }
    /^four_bit_tags/ { gsub(/[^0-9,]/, ""); count = split($0, tags, ","); for (i = 1; i <= count; ++i) four[tags[i]] = 1 }
    /^losses/ { tag = 0 }
    $1 == "tag:" { tag = $2 }
    $1 == "tokens:" && four[tag] { printf "%s%s %s", said++ ? ", " : "", turn[int(tag / 14) + 1], kind[tag % 7 + 1] }
    END { if (!said) printf "none" }' "$1"
}

echo "## Exact answers of newest_result over bits per value, %, of $questions questions"
echo
echo '[95 % interval]. Megabytes: KV of a request, mean.'
echo
echo '| bits | axes | tags with 4 bits | exact answers | MB |'
echo '|---|---|---|---|---|'
for set in full int4 int2; do echo "| $set | | | $(< "$work/$set.cell") |"; done
for blind in none temporal semantic; do
  title="no $blind axis"
  [[ $blind != none ]] || title=all
  for b in "${bits[@]}"; do
    map=$work/map-$b-$blind.textproto
    echo "| $b | $title | $(four_bits "$map") | $(< "$work/$(choice "$map").cell") |"
  done
done
