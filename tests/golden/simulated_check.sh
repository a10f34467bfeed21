#!/usr/bin/env bash
# simulated_check.sh KVTWIN FILE [write]: the digests of simulated scenarios are those in FILE, one line a
# scenario: DIGEST SCENARIO [OPTIONS]. `write` replaces the digests, after an intended change. Scenarios
# whose data is absent (KVTWIN_DATA, or data beside the sources) are skipped, and keep their digest.
set -euo pipefail
kvtwin=$1 file=$2 mode=${3:-check}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export KVTWIN_DATA=${KVTWIN_DATA:-$root/../shared/data}

bad=0 skipped=0 checked=0
lines=()
while read -r expected scenario options; do
  if [[ $expected == '#' ]]; then
    lines+=("# $scenario $options")
    continue
  fi
  if grep -q 'KVTWIN_DATA' "$root/$scenario" && [[ ! -d $KVTWIN_DATA ]]; then
    skipped=$((skipped + 1)) lines+=("$expected $scenario${options:+ $options}")
    continue
  fi
  # shellcheck disable=SC2086
  found=$("$kvtwin" run "$root/$scenario" --backend=sim --quiet --no-write $options |
    sed -n 's/.*decisions=\([0-9a-f]*\).*/\1/p')
  checked=$((checked + 1)) lines+=("$found $scenario${options:+ $options}")
  if [[ $found != "$expected" ]]; then
    [[ $mode == write ]] || echo "$scenario: decisions=${found:-none}, not $expected"
    bad=$((bad + 1))
  fi
done < "$file"
if [[ $mode == write ]]; then
  printf '%s\n' "${lines[@]}" > "$file"
  echo "$checked digests, $bad changed, $skipped kept without their data"
  exit 0
fi
echo "$checked digests, $bad differ, $skipped skipped without their data"
exit $((bad > 0))
