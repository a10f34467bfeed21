#!/usr/bin/env bash
# Checks the report in headless Chromium, from file://: no console error, no request, no empty plot, stacks
# with the heights of their sums, in light and dark mode; cursor, zoom, definitions and clicks; a run's page
# below 1.5 MB and ready after 1 s of a processor, one of 50,000 requests below 5 MB and ready within 2 s.
# Exit 77 (skipped) without Chromium.
#
#   tests/unit/reports/page_check.sh KVTWIN NODE
set -euo pipefail
kvtwin=$(realpath "$1")
node=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
export KVTWIN_CHROMIUM=${KVTWIN_CHROMIUM:-/usr/bin/chromium}
[[ -x $KVTWIN_CHROMIUM ]] || { echo "skipped: there is no Chromium (./dev test --browser installs it)"; exit 77; }
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
small=$root/scenarios/shipped/coding_agents_small.textproto

"$kvtwin" run "$small" --out="$here/a" --quiet > /dev/null
"$kvtwin" run "$small" --set=limits.requests_max=4 --out="$here/b" --quiet > /dev/null
"$kvtwin" sweep "$small" --vary=limits.requests_max=4..32*2 --vary=memory.gpu_pages=6000,9000 --out="$here/s" --quiet --format=csv > "$here/s.csv"
"$kvtwin" report "$here/a" "$here/b" "$here/s" --out="$here/all.html"
"$node" "$root/reports/web/look.mjs" "$here/all.html" --sections=comparison,sessions,sweep0 --texts='is limited by,llama-3.1-8b,Best: limits.requests_max='
"$node" "$root/reports/web/look_use.mjs" "$here/all.html" --needs=definition,time,map

# One run: its cards judged by SLOs, one kept and one broken; equal inputs give equal bytes.
"$kvtwin" report "$here/a" --slo='ttft_p99<1min' --slo='tpot_p95<1ms' --out="$here/single.html"
cp "$here/single.html" "$here/first.html"
"$kvtwin" report "$here/a" --slo='ttft_p99<1min' --slo='tpot_p95<1ms' --out="$here/single.html"
cmp "$here/first.html" "$here/single.html"
size=$(stat -c %s "$here/single.html")
[[ $size -le 1500000 ]] || { echo "the page has $size bytes"; exit 1; }
"$node" "$root/reports/web/look.mjs" "$here/single.html" --cpu-ms-max=1000 --texts='Limited by,✓ ttft_p99<1min,✗ tpot_p95<1ms,prefix reuse' --absent='change'
"$node" "$root/reports/web/look_use.mjs" "$here/single.html" --needs=definition,time

# A sweep with the SLO's line, of one axis and of two, with a limit that some points keep; one whose points all break it.
limit=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == "ttft_p99_ms") column = i }
                 NR > 1 { print int($column) + 1 }' "$here/s.csv" | sort -n | sed -n 2p)
"$kvtwin" report "$here/s" --slo="ttft_p99<${limit}ms" --out="$here/s.html"
"$node" "$root/reports/web/look.mjs" "$here/s.html" --sections=sweep0 --plots='Heat map' --texts="points that keep ttft_p99<${limit}ms"
"$node" "$root/reports/web/look_use.mjs" "$here/s.html" --needs=map
"$kvtwin" report "$here/s" --slo='ttft_p99<1ms' --out="$here/s.html"
"$node" "$root/reports/web/look.mjs" "$here/s.html" --sections=sweep0 --texts='No point keeps ttft_p99<1ms. Nearest:'
"$kvtwin" sweep "$small" --vary=limits.requests_max=4,8 --out="$here/s1" --quiet > /dev/null
"$kvtwin" report "$here/s1" --slo="ttft_p99<${limit}ms" --out="$here/s1.html"
"$node" "$root/reports/web/look.mjs" "$here/s1.html" --sections=sweep0 --plots='One metric over the axis'

# A real server's run: no settings, no figures that its files lack.
"$kvtwin" import "$root/docs/guides/examples/vllm-bench.json" --out="$here/bench" > /dev/null
"$kvtwin" report "$here/bench" --out="$here/bench.html"
"$node" "$root/reports/web/look.mjs" "$here/bench.html" --texts='measured on a real server,TTFT p99' --absent='not known,–,KV memory,Attribution,Sessions,0000000000000000'

# Head groups, and evidence of other commands (synthetic, in tests/unit/reports_data).
methods=$root/scenarios/methods
"$kvtwin" run "$methods/tangram.textproto" --set=replay.requests_max=60 --out="$here/groups" --quiet > /dev/null
mkdir "$here/evidence"
cp "$root/tests/unit/reports_data/"*.json "$here/evidence"
"$kvtwin" report "$here/groups" "$here/evidence" --out="$here/kv.html"
"$node" "$root/reports/web/look.mjs" "$here/kv.html" --sections=heads,validation,quality

# A plan.
"$kvtwin" plan "$small" '--slo=ttft_p99<3s' --load=replay.population=1..24 --need=4 --vary=hardware.node=h200,h100,a100-80gb \
    --set=replay.arrivals=fixed_population --allow-roofline --seeds=1 --out="$here/plan" --quiet > /dev/null
"$kvtwin" report "$here/plan" --out="$here/plan.html"
"$node" "$root/reports/web/look.mjs" "$here/plan.html" --sections=plan0 --plots='Cost over load,Limits of' --texts='holds population,Best candidate,4 needed'
"$node" "$root/reports/web/look_use.mjs" "$here/plan.html"

# Plans that were not judged, and two of one scenario.
"$kvtwin" plan "$small" '--slo=ttft_p99<3s' --load=replay.population=1..24 --need=4 --vary=hardware.node=h100 \
    --set=replay.arrivals=fixed_population --seeds=1 --out="$here/unjudged" --quiet > /dev/null || [[ $? == 2 ]]
"$kvtwin" report "$here/unjudged" --out="$here/unjudged.html"
"$node" "$root/reports/web/look.mjs" "$here/unjudged.html" --texts='not judged,Not judged' --absent='none holds,best first'
"$kvtwin" report "$here/plan" "$here/unjudged" --out="$here/plans.html"
"$node" "$root/reports/web/look.mjs" "$here/plans.html" --texts='2 plans of coding_agents_small,per month,(assumed)'

# A sweep over the load names no best point, but the highest load of each choice; failed points are counted.
"$kvtwin" sweep "$small" --set=replay.arrivals=fixed_population --vary=replay.population=2,4,8 --vary=hardware.node=h200,h100 \
    --vary=engines.tensor_parallel=1,2 --out="$here/load" --quiet > /dev/null 2>&1 || [[ $? == 1 ]]
"$kvtwin" report "$here/load" --slo='ttft_p95<1min' --out="$here/load.html"
"$node" "$root/reports/web/look.mjs" "$here/load.html" --sections=sweep0 --absent='Best:' \
    --texts='The highest replay.population that keeps ttft_p95<1min: at least 8,6 of 12 points failed,kvtwin sweep,TTFT p95'
"$kvtwin" report "$here/load" --out="$here/load.html"
"$node" "$root/reports/web/look.mjs" "$here/load.html" --sections=sweep0 --absent='Best:' --texts='replay.population is the load'

# Copies to the host and back: over the whole run, and one by one over some seconds.
"$kvtwin" run "$root/scenarios/suites/validation/host_tier.textproto" --backend=sim --timeline=0..2 --out="$here/tier" --quiet > /dev/null
"$kvtwin" report "$here/tier" --out="$here/tier.html"
"$node" "$root/reports/web/look.mjs" "$here/tier.html" --sections=transfers --plots='compute and copies,bytes moved,copies during steps,pages by tier' --stacks='compute and copies,pages by tier,Attribution' --texts='KV entries: what remains'

# One request; and none, since none fits: plots state it.
"$kvtwin" run "$small" --set=replay.requests_max=1 --out="$here/one" --quiet > /dev/null
"$kvtwin" report "$here/one" --out="$here/one.html"
"$node" "$root/reports/web/look.mjs" "$here/one.html"
"$kvtwin" run "$small" --set=replay.sessions_max=2 --set=memory.gpu_pages=64 --set=replay.oversized=reject --out="$here/none" --quiet > /dev/null
"$kvtwin" report "$here/none" --out="$here/none.html"
"$node" "$root/reports/web/look.mjs" "$here/none.html" --nothing-is-fine

# 82 replicas of 617 requests: 50,594.
"$kvtwin" run "$small" --set=replay.replicas=82 --set=limits.requests_max=64 --out="$here/large" --quiet > /dev/null
"$kvtwin" report "$here/large" --out="$here/large.html"
size=$(stat -c %s "$here/large.html")
[[ $size -le 5000000 ]] || { echo "the page has $size bytes"; exit 1; }
"$node" "$root/reports/web/look.mjs" "$here/large.html" --ready-ms-max=2000
