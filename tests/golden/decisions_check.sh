#!/usr/bin/env bash
# decisions_check.sh KVTWIN NAME:SESSIONS...: scenarios/suites/validation/NAME with SESSIONS sessions, and
# with a tiny model in place of its own, makes the same decisions in the CPU engine and in the simulator.
set -euo pipefail
kvtwin=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

decisions() {  # BACKEND NAME SESSIONS
  "$kvtwin" run "$root/scenarios/suites/validation/$2.textproto" --backend="$1" --clock=virtual --quiet --no-write \
    --set=cost.profile= --set=model.name="$root/models/tiny/llama-4x256.textproto" --set=model.context_window=0 \
    --set=replay.sessions_max="$3" | sed -n 's/.*\(decisions=[0-9a-f]*\).*/\1/p'
}

bad=0
for one in "${@:2}"; do
  sim=$(decisions sim "${one%:*}" "${one#*:}") cpu=$(decisions cpu "${one%:*}" "${one#*:}")
  echo "$one: sim $sim, cpu $cpu"
  [[ -n $sim && $sim == "$cpu" ]] || bad=1
done
exit $bad
