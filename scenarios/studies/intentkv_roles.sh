#!/usr/bin/env bash
# Study: IntentKV's query span and template by the roles of messages, next to fixed counts of tokens (the last three, the
# first two), on all tasks where the two differ. Prints Markdown.
#
#   scenarios/studies/intentkv_roles.sh build/dev/bin/kvtwin [QUESTIONS] [WORK]
#
# 64 and 96 tokens of a session of 384 are retained. With roles the template does not count (sinks_free), and the query
# does. Every cell is paired with `counts`, question by question; both are answered with all KV too.
set -euo pipefail

kvtwin=$(realpath "${1:?the program}")
questions=${2:-120}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"
work_in "${3:-}"
sets=$work/sets

policy_set full full
policy_set roles intentkv
policy_set counts intentkv 's#^policies {#replay { roles: false }\n&#'

echo "## IntentKV by roles and by counts: exact answers of $questions questions, 6 to a session"
echo
echo '```'
"$kvtwin" evaluate "$sets"/*.textproto --tasks=tool_schema,newest_result,question_first,long_list --budgets=64,96 \
  --questions="$questions" --per-session=6 --paired=counts --jobs="$(nproc)" --quiet --out="$work/out"
echo '```'
