// The index of a sweep's directory as an SQLite database, for questions in SQL. It holds nothing that the
// directory does not: write_index() makes it from the rows, and a damaged one is made again.
//
//   points(point, key, state, error)   axes(point, field, value)   metrics(key, name, value)

#ifndef KVTWIN_SCENARIOS_SWEEP_INDEX_H_
#define KVTWIN_SCENARIOS_SWEEP_INDEX_H_

#include <memory>
#include <string>
#include <vector>

#include "scenarios/sweep/sweep.h"

struct sqlite3;
struct sqlite3_stmt;

namespace kvtwin {

class SweepIndex {
 public:
  // Opens or makes `path`, and makes it say what `rows` say. Metrics of keys that are no longer in a row
  // stay. `warn` is told of a damaged one.
  static Result<std::unique_ptr<SweepIndex>> open(const std::string& path, const SweepSpec& spec,
                                                  const std::vector<SweepRow>& rows, const Warn& warn);
  ~SweepIndex();

  // All rows that have `row`'s key are as `row` is now.
  Result<void> put(const SweepRow& row);

 private:
  explicit SweepIndex(std::string path) : path_(std::move(path)) {}
  Result<void> prepare(const SweepSpec& spec, const std::vector<SweepRow>& rows);
  Result<void> run(const char* sql);
  // A parameter; a number only where SQL should compare it as one.
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

// What an index says: its finished points.
struct IndexedSweep {
  std::vector<std::string> axes;
  struct Point {
    std::vector<std::string> values;  // by axis
    std::string metrics;              // a flat JSON object
  };
  std::vector<Point> points;  // by number
};
Result<IndexedSweep> read_index(const std::string& path);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_INDEX_H_
