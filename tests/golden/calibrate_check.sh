#!/bin/bash
# calibrate_check.sh KVTWIN PROFILE OUT SCENARIO...: the prices of operations in PROFILE follow, byte by byte,
# from the recorded steps of the scenarios.
set -eu
kvtwin=$1 profile=$2 out=$3
"$kvtwin" calibrate device --operations="$profile" --recorded="$(dirname "$0")/$(basename "$profile" .textproto)/calibration" \
  "${@:4}" --out="$out" --quiet
cmp "$profile" "$out"
