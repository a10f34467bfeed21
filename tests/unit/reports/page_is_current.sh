#!/usr/bin/env bash
# The committed report page equals, to the byte, a build of its TypeScript sources with the locked packages.
#
#   tests/unit/reports/page_is_current.sh NODE
set -euo pipefail
node=$1
web=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../../reports/web" && pwd)
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cd "$web"
"$node" node_modules/typescript/bin/tsc --noEmit -p .
"$node" build.mjs "$here/report_page.html"
cmp "$here/report_page.html" report_page.html || {
  echo "reports/web/report_page.html is not what its sources make: run \`npm ci && npm run build\` in reports/web"
  exit 1
}
