#!/bin/sh
# Compares a simulated run with the real server's log: vllm_check.sh KVTWIN GPU METRIC=PERCENT...
# The first 30 requests are not scored, because the scenario's step times are fitted to them.
set -eu
kvtwin=$1 gpu=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$kvtwin" run "$here/../../scenarios/suites/vllm/vllm_${gpu}_llama8b.textproto" --out="$out/run" --quiet >/dev/null
limits=""
for limit in "$@"; do limits="$limits --limit=$limit"; done
# shellcheck disable=SC2086  # one word per limit
"$kvtwin" compare "$out/run" "$here/vllm/$gpu/requests.jsonl" --skip=30 $limits
