#include "scenarios/python/evaluation.h"

#include "scenarios/evaluate/paired.h"
#include "scenarios/load/in_process_scorers.h"

namespace kvtwin {
namespace {

Result<std::vector<QualityRow>> rows_of(const EvaluationRequest& request, const NamedScorer& one) {
  EvaluateRequest own = request.policies;
  own.scenarios = {request.base};
  own.out = request.temporary + "/" + one.name;
  // What a function ranks may depend on later tokens: its choice stays in the session.
  own.sets.insert(own.sets.end(),
                  {"policies.scorer=external", "policies.identity=none", "limits.prefix_cache=false",
                   "policies.scorer_options.command=" + in_process_command(one.name)});
  const InProcessScorer there(one.name, one.scorer);
  Result<std::vector<QualityRow>> rows = evaluate(own, [](const QualityRow&) {});
  if (rows) {
    for (QualityRow& row : *rows) row.policy = one.name;
  }
  return rows;
}

}  // namespace

Result<EvaluationText> evaluate_in_process(const EvaluationRequest& request) {
  std::vector<QualityRow> rows;
  if (!request.policies.scenarios.empty()) {
    Result<std::vector<QualityRow>> of_policies = evaluate(request.policies, [](const QualityRow&) {});
    if (!of_policies) return tl::unexpected<Error>(of_policies.error());
    rows = std::move(*of_policies);
  }
  for (const NamedScorer& one : request.scorers) {
    const Result<std::vector<QualityRow>> more = rows_of(request, one);
    if (!more) return tl::unexpected<Error>(more.error());
    rows.insert(rows.end(), more->begin(), more->end());
  }
  if (Result<void> ok = write_quality(request.policies.out, rows); !ok)
    return tl::unexpected<Error>(ok.error());
  EvaluationText out{quality_text(rows, OutputFormat::kCsv), quality_text(rows, OutputFormat::kTable)};
  if (!request.paired.empty()) {
    const Result<std::string> pairs = paired_table(rows, request.paired);
    if (!pairs) return tl::unexpected<Error>(pairs.error());
    out.table += *pairs;
  }
  return out;
}

}  // namespace kvtwin
