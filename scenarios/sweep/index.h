// The index of a sweep's directory as an SQLite database, for queries. It is derived from the rows: open()
// makes it agree with them, and recreates a damaged one.
//
//   points(point, key, state, error)   axes(point, field, value)   metrics(key, name, value)

#ifndef KVTWIN_SCENARIOS_SWEEP_INDEX_H_
#define KVTWIN_SCENARIOS_SWEEP_INDEX_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "scenarios/sweep/sweep.h"

struct sqlite3;
struct sqlite3_stmt;

namespace kvtwin {

class SweepIndex {
 public:
  // Opens or creates `path`, and makes it agree with `rows`. Metrics of keys that are no longer in a row
  // stay. Calls `warn` for a damaged index.
  static Result<std::unique_ptr<SweepIndex>> open(const std::string& path, const SweepSpec& spec,
                                                  const std::vector<SweepRow>& rows, const Warn& warn);
  ~SweepIndex();

  // Updates all rows that have `row`'s key to `row`.
  Result<void> put(const SweepRow& row);

 private:
  explicit SweepIndex(std::string path) : path_(std::move(path)) {}
  Result<void> prepare(const SweepSpec& spec, const std::vector<SweepRow>& rows);
  Result<void> run(const char* sql);
  // A parameter of a statement; a number only where SQL must compare it as one.
  struct Cell {
    std::string text;
    bool number = false;
  };
  static Cell whole(size_t value) { return {std::to_string(value), true}; }
  static void bind(sqlite3_stmt* statement, int at, const Cell& cell);
  Result<void> run(const char* sql, const std::vector<Cell>& cells);
  Result<void> put_metrics(const SweepRow& row);
  tl::unexpected<Error> failure() const;

  const std::string path_;
  sqlite3* base_ = nullptr;
};

// run_sweep() that keeps DIR/index.sqlite. Shards write no index: two writers on a network file system could
// damage it. The command that collects them writes it.
Result<void> run_indexed_sweep(const SweepSpec& spec, const std::string& dir, const SweepRun& how,
                               std::vector<SweepRow>* rows, const Warn& warn,
                               const std::function<void(const SweepRow&)>& ended);

// The finished points of an index, and why others failed.
struct IndexedSweep {
  std::vector<std::string> axes;
  struct Point {
    std::vector<std::string> values;  // by axis
    std::string metrics;              // a flat JSON object
    std::string key;                  // its folder is points/KEY of the sweep
  };
  std::vector<Point> points;  // by number
  struct Failure {
    uint64_t points = 0;
    std::string error;
  };
  std::vector<Failure> failures;  // by error, the most frequent first
};
Result<IndexedSweep> read_index(const std::string& path);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_INDEX_H_
