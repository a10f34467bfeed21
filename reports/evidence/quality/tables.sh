#!/usr/bin/env bash
# Rewrites the tables of a report, throughput included, from the quality.csv files in its folder:
#
#   reports/evidence/quality/tables.sh build/dev/bin/kvtwin reports/evidence/quality/2026-11-22.md
#
# A table stands between "<!-- table: NAME.csv -->" and "<!-- end -->". The throughput columns of NAME.csv are
# simulated again too (scenarios/quality/load; minutes); with a third argument, "as-is", only the report changes. A table
# marked "NAME.csv as-is" keeps its columns: scenarios/quality does not hold the policy sets that it evaluated.
set -euo pipefail

kvtwin=$1 report=$2 how=${3:-}
here=$(cd "$(dirname "$report")" && pwd)
sets=$here/../../../scenarios/quality
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

sed -n 's/^<!-- table: \(.*\) -->$/\1/p' "$report" > "$out/marks"
while read -r name mark; do
  part=$out/$name.d
  load=(--sets-in="$sets" --throughput="$sets/load/h200_llama8b.textproto" --jobs="$(nproc)")
  [[ $how != as-is && $mark != as-is ]] || load=()
  "$kvtwin" evaluate --collect="$here/$name" "${load[@]}" --out="$part" --quiet > /dev/null
  cp "$part/quality.csv" "$here/$name"
  "$kvtwin" report "$part" --out="$out/$name.md" > /dev/null
  grep '^|' "$out/$name.md" > "$out/$name.table"
  awk -v name="$name${mark:+ $mark}" -v table="$out/$name.table" '
    $0 == "<!-- table: " name " -->" { print; print ""; while ((getline line < table) > 0) print line; print ""; skip = 1; next }
    $0 == "<!-- end -->" { skip = 0 }
    !skip { print }' "$report" > "$out/report" && cp "$out/report" "$report"
done < "$out/marks"
