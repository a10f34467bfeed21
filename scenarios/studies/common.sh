# Functions for studies: running scenarios and reading their figures.

# figure KEY JSON: one number of a run's line of JSON; 0 if it is absent.
figure() {
  local row=${2#*\"$1\":}
  [[ $row != "$2" ]] && printf '%s' "${row%%[,\}]*}" || printf '0'
}
# number VALUE DIGITS [FACTOR]
number() { awk -v a="$1" -v d="${2:-2}" -v f="${3:-1}" 'BEGIN { printf "%.*f", d, a * f }'; }
# work_in DIR: sets $work. A DIR is kept, and the cells that it holds are not computed again; "" is a temporary folder.
work_in() {
  if [[ -n $1 ]]; then
    mkdir -p "$1"
    work=$(realpath "$1")
  else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
  fi
}
# quality POLICY BUDGET: percentage points of correct answers below full KV in the last evaluation of all policies
# (reports/evidence/quality), a mean over the tasks that both ran; "-" if the policy was not evaluated.
quality() {
  local table=$here/../../reports/evidence/quality/2026-11-22.csv
  awk -F, -v policy="$1" -v budget="$2" '
    NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
    $at["accuracy"] == "" { next }
    $at["policy"] == "full" { full[$at["task"]] = $at["accuracy"] }
    $at["policy"] == policy && $at["budget"] == budget { right[$at["task"]] = $at["accuracy"] }
    END {
      for (task in right) if (task in full) { sum += full[task] - right[task]; ++count }
      if (count > 0) printf "%d", int(100 * sum / count + 0.5); else printf "-"
    }' "$table"
}
# policy_set NAME FROM [SED]...: scenarios/quality/FROM.textproto, edited, as $work/sets/NAME.textproto. Policy sets of
# names of their own are paired in one evaluation.
policy_set() {
  local name=$1 from=$2
  shift 2
  mkdir -p "$work/sets"
  sed -e "s#\"\.\./\.\./models#\"$here/../../models#g" "${@/#/-e}" "$here/../quality/$from.textproto" \
    > "$work/sets/$name.textproto"
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf (b > 0 ? "%.2f" : "-"), (b > 0 ? a / b : 0) }'; }

# run SCENARIO SET...: the run as one line of JSON, or "refused:" and the error. A SET may be an option, --like-this.
run() {
  local scenario=$1 set sets=() out err=$work/err.$BASHPID
  shift
  for set in "$@"; do
    [[ $set == --* ]] && sets+=("$set") || sets+=("--set=$set")
  done
  if out=$("$kvtwin" run "$scenario" --no-write --quiet --format=jsonl "${sets[@]}" 2>"$err"); then
    printf '%s' "$out"
  else
    printf 'refused: %s' "$(head -1 "$err" | sed 's/^.*textproto[^ ]* //')"
  fi
}
# fractions_of SCENARIO: a profile's mean and deviation by head, relative to the mean of all heads, a line each; they hold
# for any ratio (docs/design/methods/tangram.md#calibration, remedy (i)).
fractions_of() {
  awk '
    /mean: \[/ { list = "mean" } /deviation: \[/ { list = "deviation" } /\]/ { list = "" }
    list != "" { gsub(/[^0-9. ]/, " "); for (i = 1; i <= NF; ++i) { v[list, ++n[list]] = $i; if (list == "mean") sum += $i } }
    function line(of,   i) { for (i = 1; i <= n[of]; ++i) printf("%s%.4f", (i > 1 ? "," : ""), v[of, i] * n["mean"] / sum); print "" }
    END { line("mean"); line("deviation") }
  ' "$1"
}
