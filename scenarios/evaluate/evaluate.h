// evaluate(): policy sets x budgets x tasks, computed on real values: does the kept KV still answer?
//
// A cell is one scenario with one budget on one task. Its trace is made here (traces/tasks/make_task.h, split
// test), it runs in the first of the request's backends that computes its policy set, and every step is said
// to take one millisecond: so the numbers of backend cpu depend on neither the machine nor SimGrid, and cells
// can run in any order and process. A cell that is done is a file, named and fingerprinted by all it depends
// on: who comes again finds it.

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
  std::vector<std::string> scenarios;  // files; each is a policy set
  std::vector<std::string> tasks;
  std::vector<uint32_t> budgets;  // cells of a head; for policy sets that have a budget
  std::vector<std::string> sets;  // of every cell
  uint32_t questions = 100;       // of a cell: at least so many count
  uint32_t tokens = 384;          // of a session
  uint32_t per_session = 4;
  uint64_t seed = 1;
  std::vector<std::string> backends = {"cpu"};  // cpu, cuda
  uint32_t batch = 0;                           // sessions at once; 0: 8, and the limits that the files have
  std::string out;                              // folder: cells/, tasks/, quality.csv, quality.json
  uint32_t shard = 0, shards = 1;               // this process does cells shard, shard + shards, ...
  std::vector<std::string> collect;  // other evaluations whose cells are rows too: folders, quality.csv
  std::string load;     // scenario that is simulated with every policy set (throughput.h); empty: none
  std::string sets_in;  // folder of the collected rows' policy sets
};

struct QualityRow {
  std::string policy;  // name of the scenario
  std::string task;
  uint32_t budget = 0;  // 0: the policy set has none
  uint64_t inputs = 0;  // fingerprint
  std::string refused;  // why there are no numbers; empty: there are
  AnswerTotals answers;
  double prompt_mean = 0;  // tokens
  uint64_t reads_raw = 0,
           reads_effective = 0;  // tokens that decodes had behind them; of which a cell is left
  double kv_bytes_mean = 0;      // that a decode's own request keeps for it, in either tier: formats counted
  double kv_read_bytes_mean =
      0;  // that it reads of them: less where pages are chosen, whose layers may be dense
  uint64_t reused = 0, reused_live = 0;  // prompt tokens found in the cache; of which a cell is left
  uint64_t tokens_computed = 0, samples = 0;
  std::string backend;                // that computed it; empty: refused
  std::string model;                  // the checkpoint's folder
  std::string asked;                  // how sessions were drawn: "tokens=384 per_session=4 seed=1"
  double simulated_tokens_per_s = 0;  // output of the load with this policy set
  std::string simulated_load;         // its name; empty: nothing was simulated
};

// A policy set's budget as fields: cells of a head where it counts cells, the fraction of the mean prompt
// where it has a ratio, tokens read where it retrieves. Empty: it has no budget.
std::vector<std::string> budget_sets(const Scenario& scenario, uint32_t cells, double prompt_mean);

// Every setting of the request is read by one of its cells at least.
Result<void> check_sets_read(const EvaluateRequest& request);

// How many cells the request has. Errors: a scenario that cannot be read.
Result<size_t> cell_count(const EvaluateRequest& request);

// Rows of all cells that are there at the end, in the order of the request, then those that were collected
// (collect.h). Files of rows are write_quality()'s. `report` is called after every cell that this process
// computed, with its wall-clock seconds left to the caller to measure. Errors: what is wrong with the
// request, a folder that cannot be written, or one to collect from that does not fit. What is wrong with a
// cell is in its row.
Result<std::vector<QualityRow>> evaluate(const EvaluateRequest& request,
                                         const std::function<void(const QualityRow&)>& report);

// quality.csv and quality.json.
Result<void> write_quality(const std::string& out, const std::vector<QualityRow>& rows);

// table: a row per policy set and budget, a column per task. json, jsonl, csv: a record per cell, with the
// loss above that of the policy set "full", if that is among the rows.
std::string quality_text(const std::vector<QualityRow>& rows, OutputFormat format);

// One cell's file.
std::string row_json(const QualityRow& row);
std::optional<QualityRow> row_from_json(const std::string& text);
// A line of quality.csv, by column. Empty: it is none.
std::optional<QualityRow> row_from_csv(const std::map<std::string, std::string>& line);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_EVALUATE_H_
