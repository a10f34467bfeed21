#!/usr/bin/env bash
# validate_check.sh KVTWIN RECORDED KNOWN SCENARIO|--set=FIELD=VALUE...: compares real runs under RECORDED with today's
# predictions, none of which may be worse than RECORDED/validation.json. KNOWN may be empty. Scenarios whose
# trace is external data that is absent are skipped with a message.
set -euo pipefail
kvtwin=$1 recorded=$2 known=$3
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export KVTWIN_DATA=${KVTWIN_DATA:-$root/../shared/data}

scenarios=() part=() sets=()
for scenario in "${@:4}"; do
  if [[ $scenario == --set=* ]]; then
    sets+=("$scenario")
    continue
  fi
  path=$(sed -n 's/.*"\$KVTWIN_DATA\/\([^"]*\)".*/\1/p' "$scenario" | head -1)
  if [[ -n $path && ! -e $KVTWIN_DATA/$path ]]; then
    echo "left out: $(basename "$scenario") needs $path of the outside data (KVTWIN_DATA)"
    part=(--part)
    continue
  fi
  scenarios+=("$scenario")
done
[[ ${#scenarios[@]} -gt 0 ]] || { echo "skipped: all of these need outside data"; exit 77; }
"$kvtwin" validate "${scenarios[@]}" --recorded="$recorded" --baseline="$recorded/validation.json" \
  ${known:+--known="$known"} "${part[@]}" "${sets[@]}" --quiet
