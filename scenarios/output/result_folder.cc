#include "scenarios/output/result_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "models/files/textproto.h"

namespace kvtwin {
namespace fs = std::filesystem;

namespace {

// The temporary name of a file. Shards of one study, which may run on several machines, write the same files
// of one folder, so each process has a name of its own.
std::string draft_name(const std::string& file) {
  char host[64] = {};
  gethostname(host, sizeof host - 1);
  return fmt::format(".{}.{}.{}.part", file, host, getpid());
}

}  // namespace

Result<void> write_files(const std::string& dir, const std::vector<RunFile>& files) {
  std::error_code failed;
  fs::create_directories(dir, failed);
  if (failed) return make_error(dir, "cannot be made: " + failed.message(), "choose another --out");
  for (const RunFile& file : files) {
    const fs::path path = fs::path(dir) / file.name, draft = fs::path(dir) / draft_name(file.name);
    std::ofstream out(draft, std::ios::binary | std::ios::trunc);
    out.write(file.bytes.data(), static_cast<std::streamsize>(file.bytes.size()));
    out.close();
    if (!out) {
      const int why = errno;
      fs::remove(draft, failed);
      return make_error(path.string(), fmt::format("cannot be written: {}", std::strerror(why)),
                        why == ENOSPC ? "is the disk full?" : "check the folder and its permissions");
    }
    fs::rename(draft, path, failed);
    if (failed) {
      const std::string why = failed.message();
      fs::remove(draft, failed);
      return make_error(path.string(), "cannot be written: " + why);
    }
  }
  return {};
}

namespace {

// The names of all files that kvtwin run and kvtwin import write into a folder.
constexpr std::string_view kRunFiles[] = {"requests.csv",
                                          "heads.json",
                                          "log.binpb",
                                          "operations.csv",
                                          "outcomes.binpb",
                                          "requests.jsonl",
                                          "run.binpb",
                                          "timeline.json",
                                          "timeline.perfetto-trace",
                                          "tools.csv",
                                          "scenario.resolved.textproto"};

bool is_run_file(const std::string& name) {
  const bool draft = name.starts_with('.') && name.ends_with(".part");
  return std::any_of(std::begin(kRunFiles), std::end(kRunFiles), [&](std::string_view file) {
    return name == file || (draft && name.starts_with(fmt::format(".{}.", file)));
  });
}

bool holds_run_files_alone(const fs::path& dir) {
  std::error_code failed;
  if (fs::is_empty(dir, failed)) return false;  // it may be a mount point or a working directory
  for (fs::directory_iterator at(dir, failed), end; !failed && at != end; at.increment(failed)) {
    if (!is_run_file(at->path().filename().string()) || !at->is_regular_file(failed)) return false;
  }
  return !failed;
}

// Exchanges the names of both folders atomically, where the file system can.
bool exchange(const fs::path& a, const fs::path& b) {
  return renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

// Removes run.binpb first and moves the new one in last: a folder without it holds no result.
Result<void> move_in(const fs::path& dir, const fs::path& draft, const std::vector<RunFile>& files) {
  std::error_code failed;
  fs::remove(dir / "run.binpb", failed);
  for (const std::string_view name : kRunFiles) {
    if (!failed) fs::remove(dir / name, failed);
  }
  for (const RunFile& file : files) {
    if (!failed) fs::rename(draft / file.name, dir / file.name, failed);
  }
  if (failed) return make_error(dir.string(), "cannot be written: " + failed.message());
  return {};
}

constexpr char kDraft[] = ".kvtwin-run-";

// When the process was started, in clock ticks after the system's start; 0: it has ended, or its start is
// unknown.
uint64_t start_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));  // behind its name
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;  // killed, and its parent has not asked for its status yet
  for (int i = 1; i < 20 && fields >> field; ++i) continue;
  return fields ? std::strtoull(field.c_str(), nullptr, 10) : 0;
}

// This process. Numbers of processes are used again, so its start is part of its name.
std::string writer_name() { return fmt::format("{}-{}", getpid(), start_of(getpid())); }

// Whether the process that called itself so still runs.
bool runs(const char* writer) {
  char* end = nullptr;
  const auto process = static_cast<pid_t>(std::strtol(writer, &end, 10));
  if (process <= 0 || *end != '-') return true;  // not a name of writer_name()
  if (kill(process, 0) != 0 && errno == ESRCH) return false;
  return start_of(process) == std::strtoull(end + 1, nullptr, 10);
}

}  // namespace

Result<void> check_replaceable(const std::string& dir, uint64_t inputs, bool force) {
  std::error_code ignored;
  if (fs::exists(dir, ignored) && !fs::is_directory(dir, ignored))
    return make_error(dir, "is a file", "--out is the name of a folder");
  if (force || !fs::exists(fs::path(dir) / "run.binpb", ignored)) return {};
  const Result<v1::RunResult> old = read_result(dir);
  if (old && old->inputs() == inputs) return {};
  return make_error(dir,
                    old ? fmt::format("holds the result of other inputs ({})", old->scenario())
                        : "holds a result that cannot be read",
                    "another --out; --force replaces it");
}

void remove_stale_drafts(const std::string& parent, const std::function<bool(std::string_view)>& of) {
  std::vector<fs::path> stale;
  std::error_code failed;
  for (fs::directory_iterator at(parent, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    const size_t writer = name.rfind(kDraft);
    if (writer == std::string::npos || !of(std::string_view(name).substr(0, writer))) continue;
    if (!runs(name.c_str() + writer + std::strlen(kDraft))) stale.push_back(at->path());
  }
  for (const fs::path& path : stale) fs::remove_all(path, failed);
}

Result<void> replace_run(const std::string& dir, const std::vector<RunFile>& files) {
  std::error_code failed;
  const fs::path given(dir);
  const fs::path target = fs::exists(given, failed) ? fs::canonical(given, failed)
                                                    : fs::absolute(given, failed).lexically_normal();
  const bool is_new = !fs::exists(target, failed), swap = is_new || holds_run_files_alone(target);
  const std::string name = kDraft + writer_name();
  fs::path whole = target;
  if (!whole.has_filename()) whole = whole.parent_path();
  remove_stale_drafts(whole.parent_path().string(),
                      [&](std::string_view folder) { return folder == whole.filename().string(); });
  const fs::path draft = swap ? fs::path(whole.string() + name) : whole / name;
  Result<void> done = write_files(draft.string(), files);
  if (done && swap) {
    failed.clear();
    if (is_new) {
      fs::rename(draft, whole, failed);
    } else if (!exchange(draft, whole)) {
      done = move_in(whole, draft, files);  // a file system that cannot exchange
    }
    if (failed) done = make_error(dir, "cannot be made: " + failed.message(), "choose another --out");
  } else if (done) {
    done = move_in(whole, draft, files);
  }
  fs::remove_all(draft, failed);
  return done;
}

Result<v1::RunResult> read_result(const std::string& dir) {
  const std::string path = dir + "/run.binpb";
  const Result<std::string> bytes = read_text_file(path);
  if (!bytes) return tl::unexpected(bytes.error());
  v1::RunResult out;
  google::protobuf::LogSilencer silence;  // the Error reports the failure
  if (!out.ParseFromString(*bytes)) return make_error(path, "is not a run result", "run the scenario again");
  if (out.schema_version() != kResultSchema) {
    return make_error(path, fmt::format("schema version is {}", out.schema_version()),
                      fmt::format("this version reads {}", kResultSchema));
  }
  return out;
}

}  // namespace kvtwin
