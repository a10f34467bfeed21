// evaluate(): policy sets x budgets x tasks, computed on real values: are answers from the retained KV
// correct?
//
// A cell is one scenario with one budget on one task. Its trace is generated here (traces/tasks/make_task.h,
// test split), it runs in the first of the request's backends that computes its policy set, and every step
// reports a duration of one millisecond: so numbers of backend cpu depend on neither the machine nor SimGrid,
// and cells can run in any order and process. A finished cell is a file, named by the fingerprint of all that
// it depends on, so that a repeated evaluation finds it.

#ifndef KVTWIN_SCENARIOS_EVALUATE_EVALUATE_H_
#define KVTWIN_SCENARIOS_EVALUATE_EVALUATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scenarios/evaluate/answers.h"
#include "scenarios/load/scenario.h"
#include "scenarios/output/summary.h"

namespace kvtwin {

struct EvaluateRequest {
  std::vector<std::string> scenarios;  // files, one per policy set
  std::vector<std::string> tasks;
  std::vector<uint32_t> budgets;  // KV entries per head, for policy sets that have a budget
  std::vector<std::string> sets;  // of every cell
  uint32_t questions = 100;       // fewest scored questions of a cell
  uint32_t tokens = 384;          // of a session
  uint32_t per_session = 4;
  bool drop_turns = false;  // TaskOptions::drop_turns
  uint64_t seed = 1;
  std::vector<std::string> backends = {"cpu"};  // cpu, cuda
  uint32_t batch = 0;                           // concurrent sessions; 0: 8, with the limits of the files
  std::string out;                              // folder: cells/, tasks/, quality.csv, quality.json
  uint32_t shard = 0, shards = 1;               // this process computes cells shard, shard + shards, ...
  std::vector<std::string> collect;  // folders or quality.csv of other evaluations, whose cells are added
  std::string load;                  // scenario to simulate with every policy set (throughput.h); empty: none
  std::string sets_in;               // folder of the collected rows' policy sets
};

struct QualityRow {
  std::string policy;  // name of the scenario
  std::string task;
  uint32_t budget = 0;  // 0: the policy set has none
  uint64_t inputs = 0;  // fingerprint
  std::string refused;  // why there are no numbers; empty: there are
  AnswerTotals answers;
  double prompt_mean = 0;  // tokens
  // Context tokens of all decodes; those of which an entry is retained.
  uint64_t reads_raw = 0, reads_effective = 0;
  // KV of a decode's own request in all tiers, in its formats; the part that the decode reads. The latter is
  // smaller where pages are chosen, whose first layers may be dense.
  double kv_bytes_mean = 0;
  double kv_read_bytes_mean = 0;
  // Where pages are chosen: fraction of choices, one per head and step, that were made anew before attention;
  // fraction of chosen pages that had to be recalled.
  std::optional<double> correction_rate, miss_rate;
  // Prompt tokens found in the cache; those of which an entry is retained.
  uint64_t reused = 0, reused_live = 0;
  uint64_t tokens_computed = 0, samples = 0;
  std::string backend;                // that computed the row; empty: refused
  std::string model;                  // the checkpoint's folder
  std::string asked;                  // how sessions are drawn: "tokens=384 per_session=4 seed=1"
  double simulated_tokens_per_s = 0;  // output rate of the load with this policy set
  std::string simulated_load;         // name of the load; empty: not simulated
};

// A policy set's budget as settings: KV entries per head where it counts entries, the fraction of the mean
// prompt where it has a ratio, tokens read where it retrieves. Empty: the set has no budget.
std::vector<std::string> budget_sets(const Scenario& scenario, uint32_t cells, double prompt_mean);

// Checks that at least one cell reads each setting of the request.
Result<void> check_sets_read(const EvaluateRequest& request);

// The number of cells of the request. Errors: a scenario that cannot be read.
Result<size_t> cell_count(const EvaluateRequest& request);

// Computes this process's cells and returns the rows of all finished cells in the order of the request,
// followed by the collected ones (collect.h). write_quality() writes files of rows. `report` is called after
// every cell that this process computes; the caller may measure wall-clock time between calls. Errors: an
// invalid request, a folder that cannot be written, or one to collect from that does not fit. The error of a
// cell is in its row.
Result<std::vector<QualityRow>> evaluate(const EvaluateRequest& request,
                                         const std::function<void(const QualityRow&)>& report);

// Writes quality.csv and quality.json.
Result<void> write_quality(const std::string& out, const std::vector<QualityRow>& rows);

// table: a row per policy set and budget, a column per task. json, jsonl, csv: a record per cell, with the
// excess of its loss over that of policy set "full", if that is among the rows.
std::string quality_text(const std::vector<QualityRow>& rows, OutputFormat format);

// The file of one cell.
std::string row_json(const QualityRow& row);
std::optional<QualityRow> row_from_json(const std::string& text);
// A line of quality.csv, by column. Nullopt: invalid.
std::optional<QualityRow> row_from_csv(const std::map<std::string, std::string>& line);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_EVALUATE_H_
