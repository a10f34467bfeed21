#include <fmt/format.h>
#include <sqlite3.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "scenarios/sweep/index.h"

namespace kvtwin {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {
    opened_ = sqlite3_open_v2(path.c_str(), &base_, SQLITE_OPEN_READONLY, nullptr) == SQLITE_OK;
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { sqlite3_close(base_); }

  // Calls `row` with each row of the result.
  template <typename Row>
  Result<void> each(const char* sql, Row row) {
    sqlite3_stmt* statement = nullptr;
    if (!opened_ || sqlite3_prepare_v2(base_, sql, -1, &statement, nullptr) != SQLITE_OK) return failure();
    int status = sqlite3_step(statement);
    for (; status == SQLITE_ROW; status = sqlite3_step(statement)) row(statement);
    sqlite3_finalize(statement);
    if (status != SQLITE_DONE) return failure();
    return {};
  }

 private:
  tl::unexpected<Error> failure() const {
    return make_error(path_, fmt::format("the index cannot be read: {}", sqlite3_errmsg(base_)),
                      "kvtwin sweep makes it again from the points");
  }

  const std::string path_;
  sqlite3* base_ = nullptr;
  bool opened_ = false;
};

std::string text(sqlite3_stmt* statement, int at) {
  const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement, at));
  return bytes == nullptr ? "" : bytes;
}

nlohmann::json value(sqlite3_stmt* statement, int at) {
  const int type = sqlite3_column_type(statement, at);
  if (type == SQLITE_INTEGER) return sqlite3_column_int64(statement, at);
  if (type == SQLITE_FLOAT) return sqlite3_column_double(statement, at);
  return text(statement, at);
}

}  // namespace

Result<IndexedSweep> read_index(const std::string& path) {
  Reader reader(path);
  IndexedSweep out;
  std::map<std::string, size_t> axis_of;
  Result<void> ok = reader.each("SELECT DISTINCT field FROM axes ORDER BY rowid", [&](sqlite3_stmt* row) {
    if (axis_of.emplace(text(row, 0), out.axes.size()).second) out.axes.push_back(text(row, 0));
  });
  if (!ok) return tl::unexpected<Error>(ok.error());
  std::map<int64_t, size_t> place;
  std::vector<nlohmann::ordered_json> metrics;
  ok = reader.each("SELECT point, key FROM points WHERE state='done' ORDER BY point", [&](sqlite3_stmt* row) {
    place.emplace(sqlite3_column_int64(row, 0), out.points.size());
    out.points.push_back({std::vector<std::string>(out.axes.size()), "", text(row, 1)});
    metrics.emplace_back(nlohmann::ordered_json::object());
  });
  if (!ok) return tl::unexpected<Error>(ok.error());
  ok = reader.each("SELECT point, field, value FROM axes", [&](sqlite3_stmt* row) {
    const auto found = place.find(sqlite3_column_int64(row, 0));
    if (found != place.end()) out.points[found->second].values[axis_of[text(row, 1)]] = text(row, 2);
  });
  if (!ok) return tl::unexpected<Error>(ok.error());
  ok = reader.each("SELECT p.point, m.name, m.value FROM points p JOIN metrics m USING(key) ORDER BY m.rowid",
                   [&](sqlite3_stmt* row) {
                     const auto found = place.find(sqlite3_column_int64(row, 0));
                     if (found != place.end()) metrics[found->second][text(row, 1)] = value(row, 2);
                   });
  if (!ok) return tl::unexpected<Error>(ok.error());
  ok = reader.each(
      "SELECT count(*), error FROM points WHERE state='failed' GROUP BY error ORDER BY 1 DESC, 2",
      [&](sqlite3_stmt* row) {
        out.failures.push_back({static_cast<uint64_t>(sqlite3_column_int64(row, 0)), text(row, 1)});
      });
  if (!ok) return tl::unexpected<Error>(ok.error());
  for (size_t i = 0; i < out.points.size(); ++i) out.points[i].metrics = metrics[i].dump();
  return out;
}

}  // namespace kvtwin
