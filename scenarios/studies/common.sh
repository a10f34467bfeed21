# Sourced by studies: running scenarios and reading their figures.

# figure KEY JSON: one number of a run's line of JSON; 0 where it has none.
figure() {
  local row=${2#*\"$1\":}
  [[ $row != "$2" ]] && printf '%s' "${row%%[,\}]*}" || printf '0'
}
# number VALUE DIGITS [FACTOR]
number() { awk -v a="$1" -v d="${2:-2}" -v f="${3:-1}" 'BEGIN { printf "%.*f", d, a * f }'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf (b > 0 ? "%.2f" : "-"), (b > 0 ? a / b : 0) }'; }

# run SCENARIO SET...: the run as one line of JSON; what is wrong instead, after "refused:".
run() {
  local scenario=$1 set sets=() out
  shift
  for set in "$@"; do sets+=("--set=$set"); done
  if out=$("$kvtwin" run "$scenario" --no-write --quiet --format=jsonl "${sets[@]}" 2>"$work/err"); then
    printf '%s' "$out"
  else
    printf 'refused: %s' "$(head -1 "$work/err" | sed 's/^.*textproto[^ ]* //')"
  fi
}
