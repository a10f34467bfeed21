#!/usr/bin/env bash
# Study: exact answers over TriAxialKV's bits per value, on a task whose tags differ in use. Prints Markdown.
#
#   scenarios/studies/triaxial_bits.sh build/dev/bin/kvtwin [QUESTIONS]
#
# newest_result has talk, old results and one result that is asked about. For each number of bits a map is calibrated on
# split `train` (12 sessions, seed 11), with all axes and without the temporal or the semantic one, and asked on split
# `test`. A map that gives the tag in use 4 bits answers as int4 does, one that gives it 2 bits as int2 does.
set -euo pipefail

kvtwin=$(realpath "${1:?the program}")
questions=${2:-252}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sets=$here/../quality

"$kvtwin" trace make-task newest_result --split=train --sessions=12 --questions=4 --seed=11 --tokens=1024 \
  --out="$work/newest.kvtrace" > /dev/null

# ask SET OPTION...: "correct [low high]"
ask() {
  local out
  out=$(mktemp -d -p "$work")
  "$kvtwin" evaluate "$sets/$1.textproto" --tasks=newest_result --questions="$questions" --tokens=1024 "${@:2}" --quiet \
    --out="$out" > /dev/null
  awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
    { printf "%.1f [%.0f %.0f]", 100 * $at["accuracy"], 100 * $at["accuracy_low"], 100 * $at["accuracy_high"] }' \
    "$out/quality.csv"
}
# calibrate BITS BLIND: the map $work/map-BITS-BLIND.textproto
calibrate() {
  "$kvtwin" calibrate policy precision "$sets/triaxial.textproto" --set=trace.path="$work/newest.kvtrace" \
    --set=trace.format=kvtwin --set=replay.arrivals=all_at_once --bits="$1" --contexts=6 --context-min=700 --layers=3 \
    --rows=16 --blind="$2" --out="$work/map-$1-$2.textproto" > /dev/null
}
# Maps with the same tags in 4 bits answer the same, so each choice of tags is asked once.
choice() { grep '^four_bit_tags' "$1" | md5sum | cut -c1-8; }
chosen() { ask triaxial_newest --set=policies.precision_options.tag_map="$1" > "$work/answers-$(choice "$1")"; }
uniform() { ask "$1" > "$work/answers-$1"; }
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
answers() { cat "$work/answers-$(choice "$work/map-$1-$2.textproto")"; }

echo "## Exact answers of newest_result over bits per value, %, of $questions questions"
echo
echo "[95 % interval]. Uniform formats: full $(< "$work/answers-full"), int4 $(< "$work/answers-int4")," \
  "int2 $(< "$work/answers-int2")."
echo
echo '| bits | all axes | no temporal axis | no semantic axis |'
echo '|---|---|---|---|'
for b in "${bits[@]}"; do
  echo "| $b | $(answers "$b" none) | $(answers "$b" temporal) | $(answers "$b" semantic) |"
done
