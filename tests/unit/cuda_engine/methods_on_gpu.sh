#!/bin/sh
# Repeats each method's CPU run on the GPU with its outcomes forced, and names every method whose decisions
# differ.
#   tests/unit/cuda_engine/methods_on_gpu.sh KVTWIN SCENARIOS [RECORDS [natural]]
# KVTWIN: the program. SCENARIOS: a folder of *.textproto. RECORDS: the folder of each scenario's CPU run,
# written by
#   kvtwin run X.textproto --backend=cpu --clock=virtual --record --out=RECORDS/X
# or written now if absent. Without RECORDS the runs are discarded. Prints a table. `natural`: also runs
# without forced outcomes. Exit status 1: a method decided differently; 77: there is no GPU.
set -u
work=$(mktemp -d) || exit 3
kvtwin=$1 scenarios=$2 records=${3:-$work/records} natural=${4:-}
trap 'rm -rf "$work"' EXIT
mkdir -p "$records"
status=0 done=0
digest() { sed -n 's/.*decisions=\([0-9a-f]*\).*/\1/p' "$1" | head -1; }
for file in "$scenarios"/*.textproto; do
  "$kvtwin" run "$file" --backend=cuda --clock=virtual --quiet --no-write --set=replay.requests_max=1 \
    > /dev/null 2> "$work/errors"
  if grep -qE 'no CUDA GPU here|no kernels for|no CUDA backend' "$work/errors"; then
    echo "skipped: $(head -1 "$work/errors")"
    exit 77
  fi
  break
done
printf '%-22s %-16s %-9s %-9s %s\n' method decisions forced natural outcomes
for file in "$scenarios"/*.textproto; do
  name=$(basename "$file" .textproto)
  if [ ! -e "$records/$name/run.binpb" ]; then
    "$kvtwin" run "$file" --backend=cpu --clock=virtual --record --quiet --out="$records/$name" \
      > "$records/$name.txt" 2> "$work/errors" || { echo "$name: $(head -1 "$work/errors")"; continue; }
  fi
  expected=$(digest "$records/$name.txt")
  sets="--set=simulation.force_outcomes=true"
  grep -qE 'retrieval: "(shadowkv|infinigen)"' "$file" && sets=  # their recalls cannot be forced: the data decides
  if [ -n "$sets" ] && [ -e "$records/$name/outcomes.binpb" ]; then
    sets="$sets --set=simulation.recorded_run=$records/$name --set=simulation.retained=recorded"
    grep -q 'retrieval: "' "$file" && sets="$sets --set=simulation.retrieval.outcomes=recorded"
  fi
  for how in forced ${natural:+natural}; do
    [ $how = natural ] && sets=
    # shellcheck disable=SC2086
    "$kvtwin" run "$file" --backend=cuda --clock=virtual --quiet --no-write $sets \
      > "$work/$how" 2> "$work/errors" || { cat "$work/errors" > "$work/$how"; }
  done
  if ! grep -q 'decisions=' "$work/forced"; then
    printf '%-22s %s\n' "$name" "not computed: $(head -1 "$work/forced" | cut -c1-150)"
    continue
  fi
  done=$((done + 1))
  same=equal other=${natural:+equal}
  [ "$(digest "$work/forced")" = "$expected" ] || same=DIFFERS status=1
  [ -z "$natural" ] || [ "$(digest "$work/natural")" = "$expected" ] || other=differs
  said=$(sed -n 's/.*\(forced, [^;]*\(; met in [0-9 of]*\)\{0,1\}\).*/\1/p' "$work/forced" | head -1)
  printf '%-22s %-16s %-9s %-9s %s\n' "$name" "$expected" $same "${other:--}" "${said:-nothing to force}"
done
echo "$done methods computed"
[ $done -gt 0 ] || status=1
exit $status
