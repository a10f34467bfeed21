// Recognises the format of a path by its content. Names are not enough: five formats are .jsonl.

#include <fmt/format.h>

#include <filesystem>

#include "traces/format/reader.h"
#include "traces/format/source_files.h"
#include "traces/importers/formats.h"
#include "traces/importers/import_logs.h"

namespace kvtwin {
namespace {

constexpr char kNameIt[] = "name the format: --format=NAME (kvtwin list formats)";

namespace fs = std::filesystem;

// Claude's logs may start with a long file-history snapshot, and tau-bench's with the task, before the field
// that identifies them.
constexpr size_t kStartBytes = 65'536;
// Next to the traces there are indices, reports and lists of tools: a few files may have no format.
constexpr size_t kFilesMax = 16;

// The format of a file that starts like this, or "". A quoted field cannot occur inside a JSON string, where
// its quotes are escaped.
std::string format_of(std::string_view start) {
  const auto holds = [&start](std::string_view text) { return start.find(text) != std::string_view::npos; };
  if (looks_like_trace(std::string(start.substr(0, 4'096)))) return "kvtwin";
  if (start.starts_with("TIMESTAMP,") || start.starts_with("\xef\xbb\xbfTIMESTAMP,")) return "azure";
  const std::string log = log_format_of(start);
  if (log == "requests" || log == "aiperf" || log == "langfuse") return log;
  if (holds("\"type\"") && (holds("\"sessionId\"") || holds("\"leafUuid\""))) return "claude-code";
  if (holds("\"hash_id_scope\"") || (holds("\"hash_ids\"") && holds("\"block_size\""))) return "weka";
  if (holds("\"input_toks\"") || holds("\"sub_requests\"")) return "llmservingsim";
  if (holds("\"wait_for\"")) return "agentic_mooncake";
  if (holds("\"hash_ids\"") ||
      (holds("\"timestamp\"") && holds("\"input_length\"") && holds("\"output_length\"")))
    return "mooncake";
  if (holds("\"input_prompt_length\"")) return "applied-compute";
  if (holds("\"traj\"")) return "tau-bench";
  return log;
}

bool reads_many_files(const std::string& format) {
  return format == "weka" || format == "claude-code" || format == "tau-bench";
}

Result<std::string> guess_of_many(const std::string& path) {
  std::string found, alone;
  size_t looked = 0;
  const auto wanted = [](const std::string& name) {
    return name.ends_with(".json") || name.ends_with(".jsonl") || name.ends_with(".csv");
  };
  const auto take = [&](const std::string& name, std::string_view start) {
    const std::string format = format_of(start);
    if (reads_many_files(format)) found = format;
    if (alone.empty() && !format.empty()) alone = fmt::format("{} is of format {}", name, format);
    return found.empty() && ++looked < kFilesMax;
  };
  if (auto good = for_each_start(path, kStartBytes, wanted, take); !good) return tl::unexpected(good.error());
  if (!found.empty()) return found;
  if (!alone.empty()) return make_error(path, alone + ", which is read from a file", "give that file");
  if (looked == 0) return make_error(path, "holds no file .json, .jsonl or .csv", "traces, or another path");
  return make_error(path, fmt::format("the {} files looked at are of no known format", looked), kNameIt);
}

}  // namespace

Result<std::string> guess_format(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error))
    return make_error(path, "does not exist", "a trace file, directory or archive");
  if (fs::is_directory(path, error) || is_archive_name(path)) return guess_of_many(path);
  std::string format;
  const auto take = [&](const std::string&, std::string_view start) {
    format = format_of(start);
    return false;
  };
  const auto any = [](const std::string&) { return true; };
  if (auto good = for_each_start(path, kStartBytes, any, take); !good) return tl::unexpected(good.error());
  if (!format.empty()) return format;
  if (fs::file_size(path, error) == 0 && !error) return make_error(path, "is empty", "a trace or a log");
  return make_error(path, fmt::format("its first {} bytes are of no known format", kStartBytes), kNameIt);
}

}  // namespace kvtwin
