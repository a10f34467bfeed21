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
# cell BITS BLIND: the answers of a map of its own
cell() {
  local map=$work/map-$1-$2.textproto
  "$kvtwin" calibrate policy precision "$sets/triaxial.textproto" --set=trace.path="$work/newest.kvtrace" \
    --set=trace.format=kvtwin --set=replay.arrivals=all_at_once --bits="$1" --contexts=6 --context-min=700 --layers=3 \
    --rows=16 --blind="$2" --out="$map" > /dev/null
  ask triaxial_newest --set=policies.precision_options.tag_map="$map"
}

echo "## Exact answers of newest_result over bits per value, %, of $questions questions"
echo
echo "[95 % interval]. Uniform formats: full $(ask full), int4 $(ask int4), int2 $(ask int2)."
echo
echo '| bits | all axes | no temporal axis | no semantic axis |'
echo '|---|---|---|---|'
for bits in 2.3 2.4 2.5 2.6 2.7 2.8 2.9 3.0 3.1 3.2 3.3; do
  echo "| $bits | $(cell "$bits" none) | $(cell "$bits" temporal) | $(cell "$bits" semantic) |"
done
