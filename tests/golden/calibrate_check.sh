#!/bin/sh
# calibrate_check.sh KVTWIN PROFILE OUT SCENARIO...: the prices of methods in PROFILE follow, byte by byte,
# from the recorded steps of the scenarios.
set -eu
kvtwin=$1 profile=$2 out=$3
shift 3
"$kvtwin" calibrate methods "$@" --recorded="$(dirname "$0")/$(basename "$profile" .textproto)/calibration" --profile="$profile" --out="$out" --quiet
cmp "$profile" "$out"
