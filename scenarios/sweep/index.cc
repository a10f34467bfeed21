#include "scenarios/sweep/index.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace kvtwin {
namespace {

constexpr char kSchema[] =
    "PRAGMA journal_mode=WAL;"
    "CREATE TABLE IF NOT EXISTS points(point INTEGER PRIMARY KEY, key TEXT, state TEXT, error TEXT);"
    "CREATE TABLE IF NOT EXISTS axes(point INTEGER, field TEXT, value, PRIMARY KEY(point, field));"
    "CREATE TABLE IF NOT EXISTS metrics(key TEXT, name TEXT, value, PRIMARY KEY(key, name));";

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && text.find_first_not_of("+-.0123456789eE") == std::string::npos;
}

void remove_base(const std::string& path) {
  std::error_code ignored;
  for (const char* part : {"", "-wal", "-shm"}) std::filesystem::remove(path + part, ignored);
}

}  // namespace

Result<std::unique_ptr<SweepIndex>> SweepIndex::open(const std::string& path, const SweepSpec& spec,
                                                     const std::vector<SweepRow>& rows, const Warn& warn) {
  for (const bool last : {false, true}) {
    std::unique_ptr<SweepIndex> index(new SweepIndex(path));
    Result<void> ok;
    if (sqlite3_open(path.c_str(), &index->base_) != SQLITE_OK) {
      ok = index->failure();
    } else {
      sqlite3_busy_timeout(index->base_, 10'000);
      ok = index->prepare(spec, rows);
    }
    if (ok) return index;
    if (last) return tl::unexpected<Error>(ok.error());
    index.reset();
    warn(ok.error().text() + "; it is made again from the points");
    remove_base(path);
  }
  return make_error(path, "cannot be opened");
}

SweepIndex::~SweepIndex() { sqlite3_close(base_); }

void SweepIndex::bind(sqlite3_stmt* statement, int at, const Cell& cell) {
  if (!cell.number) {
    sqlite3_bind_text(statement, at, cell.text.c_str(), static_cast<int>(cell.text.size()), SQLITE_TRANSIENT);
  } else if (cell.text.find_first_of(".eE") == std::string::npos) {
    sqlite3_bind_int64(statement, at, std::strtoll(cell.text.c_str(), nullptr, 10));
  } else {
    sqlite3_bind_double(statement, at, std::strtod(cell.text.c_str(), nullptr));
  }
}

tl::unexpected<Error> SweepIndex::failure() const {
  return make_error(path_, fmt::format("the index cannot be written: {}", sqlite3_errmsg(base_)));
}

Result<void> SweepIndex::prepare(const SweepSpec& spec, const std::vector<SweepRow>& rows) {
  if (Result<void> ok = run(kSchema); !ok) return ok;
  if (Result<void> ok = run("BEGIN; DELETE FROM points; DELETE FROM axes;"); !ok) return ok;
  for (const SweepRow& row : rows) {
    if (Result<void> ok = run("INSERT INTO points VALUES(?,?,?,?)",
                              {whole(row.point), {row.key}, {name_of(row.state)}, {row.error}});
        !ok)
      return ok;
    for (size_t a = 0; a < spec.axes.size(); ++a) {
      if (Result<void> ok =
              run("INSERT OR REPLACE INTO axes VALUES(?,?,?)",
                  {whole(row.point), {spec.axes[a].field}, {row.values[a], is_number(row.values[a])}});
          !ok)
        return ok;
    }
    if (Result<void> ok = put_metrics(row); !ok) return ok;
  }
  return run("COMMIT");
}

Result<void> SweepIndex::put(const SweepRow& row) {
  if (Result<void> ok = run("BEGIN"); !ok) return ok;
  if (Result<void> ok = run("UPDATE points SET state=?, error=? WHERE key=?",
                            {{name_of(row.state)}, {row.error}, {row.key}});
      !ok)
    return ok;
  if (Result<void> ok = put_metrics(row); !ok) return ok;
  return run("COMMIT");
}

Result<void> SweepIndex::put_metrics(const SweepRow& row) {
  for (const auto& [name, value] : row.metrics) {
    const Cell cell = value.front() == '"' ? Cell{nlohmann::json::parse(value).get<std::string>()}
                                           : Cell{value, is_number(value)};
    if (Result<void> ok = run("INSERT OR REPLACE INTO metrics VALUES(?,?,?)", {{row.key}, {name}, cell}); !ok)
      return ok;
  }
  return {};
}

Result<void> SweepIndex::run(const char* sql) {
  if (sqlite3_exec(base_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return failure();
  return {};
}

Result<void> SweepIndex::run(const char* sql, const std::vector<Cell>& cells) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(base_, sql, -1, &statement, nullptr) != SQLITE_OK) return failure();
  for (size_t i = 0; i < cells.size(); ++i) bind(statement, static_cast<int>(i) + 1, cells[i]);
  const int status = sqlite3_step(statement);
  sqlite3_finalize(statement);
  if (status != SQLITE_DONE) return failure();
  return {};
}

Result<void> run_indexed_sweep(const SweepSpec& spec, const std::string& dir, const SweepRun& how,
                               std::vector<SweepRow>* rows, const Warn& warn,
                               const std::function<void(const SweepRow&)>& ended) {
  if (how.shard.count > 1) return run_sweep(spec, dir, how, rows, ended);
  const Result<std::unique_ptr<SweepIndex>> index =
      SweepIndex::open(dir + "/index.sqlite", spec, *rows, warn);
  if (!index) return tl::unexpected<Error>(index.error());
  Result<void> indexed;
  const Result<void> ran = run_sweep(spec, dir, how, rows, [&](const SweepRow& row) {
    ended(row);
    if (indexed) indexed = (*index)->put(row);
  });
  return ran ? indexed : ran;
}

}  // namespace kvtwin
