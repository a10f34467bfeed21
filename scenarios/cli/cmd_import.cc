#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/plural.h"
#include "models/catalog/catalog.h"
#include "models/cost_tables/import_vidur.h"
#include "models/files/textproto.h"
#include "scenarios/cli/cli.h"
#include "scenarios/server_runs/measured.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr size_t kImportBytesMax = size_t{1} << 30;

struct ImportArguments {
  std::string file, out, format = "auto", before, name, model, gpu;
  int64_t run = -1;
  double seconds = 0;
  bool force = false;
};

Result<MeasuredFormat> format_of(const ImportArguments& arguments, const std::string& text) {
  if (arguments.format == "auto") return detect_measured(text, arguments.file);
  if (arguments.format == "bench") return MeasuredFormat::kBench;
  if (arguments.format == "aiperf") return MeasuredFormat::kAiperf;
  if (arguments.format == "requests") return MeasuredFormat::kRequests;
  if (arguments.format == "prometheus") return MeasuredFormat::kPrometheus;
  return make_error("--format", fmt::format("there is no format \"{}\"", arguments.format),
                    "one of: auto, bench, aiperf, requests, prometheus, vidur");
}

Result<MeasuredRun> read_measured(const ImportArguments& arguments) {
  const Result<std::string> text = read_text_file(arguments.file, kImportBytesMax);
  if (!text) return tl::unexpected<Error>(text.error());
  const Result<MeasuredFormat> format = format_of(arguments, *text);
  if (!format) return tl::unexpected<Error>(format.error());
  if (*format == MeasuredFormat::kBench) return read_bench(*text, arguments.file, arguments.run);
  if (*format == MeasuredFormat::kAiperf) return read_aiperf(*text, arguments.file);
  if (*format == MeasuredFormat::kRequests) return read_request_log(*text, arguments.file);
  std::string before;
  if (!arguments.before.empty()) {
    Result<std::string> earlier = read_text_file(arguments.before, kImportBytesMax);
    if (!earlier) return tl::unexpected<Error>(earlier.error());
    before = std::move(*earlier);
  }
  return read_prometheus(*text, before, arguments.seconds, arguments.file);
}

// A profile's folder holds one import only: a reader would otherwise take tables that the new import lacks
// from the old one (models/cost_tables/cost_tables.cc).
Result<void> make_room(const ImportArguments& arguments, const ProfileFolder& profile) {
  std::error_code failed;
  std::vector<fs::path> others;
  for (fs::recursive_directory_iterator at(arguments.out, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (!at->is_regular_file(failed)) continue;
    const std::string name = at->path().lexically_relative(arguments.out).generic_string();
    const auto same = std::find_if(profile.begin(), profile.end(), [&](const auto& file) {
      return file.first == name && read_text_file(at->path().string(), kImportBytesMax) == file.second;
    });
    if (same == profile.end()) others.push_back(at->path());
  }
  if (others.empty()) return {};
  if (!arguments.force) {
    return make_error(arguments.out,
                      fmt::format("holds {}, which this import did not write", others.front().string()),
                      "another --out; --force replaces the profile in it");
  }
  for (const fs::path& other : others) {
    const bool table =
        other.extension() == ".csv" && other.parent_path().filename().string().starts_with("tp");
    if (table) fs::remove(other, failed);
  }
  return {};
}

// Kernel times: converts a folder with mlp.csv and attention.csv into one that cost.profile reads.
int import_profile(const ImportArguments& arguments) {
  if (arguments.model.empty())
    return complain(Error{"--model", "is missing: the model whose rows to read", "kvtwin list models"});
  const Result<LlmSpec> llm = Catalog().llm(arguments.model);
  if (!llm) return complain(llm.error());
  NamedText mlp{arguments.file + "/mlp.csv", {}}, attention{arguments.file + "/attention.csv", {}};
  for (NamedText* file : {&mlp, &attention}) {
    Result<std::string> text = read_text_file(file->path, kImportBytesMax);
    if (!text) return complain(text.error());
    file->text = std::move(*text);
  }
  const std::string gpu = arguments.gpu.empty() ? "not said" : arguments.gpu;
  const Result<ProfileFolder> profile = import_vidur(mlp, attention, *llm, gpu);
  if (!profile) return complain(profile.error());
  if (const Result<void> ok = make_room(arguments, *profile); !ok) return complain(ok.error());
  for (const auto& [name, bytes] : *profile) {
    const fs::path path = fs::path(arguments.out) / name;
    const RunFile file{path.filename().string(), bytes};
    if (Result<void> ok = write_files(path.parent_path().string(), {file}); !ok)
      return complain(ok.error(), kExitEnvironment);
  }
  fmt::print("{}: kernel times of {}; kvtwin run SCENARIO --set=cost.profile={}\n", arguments.out, llm->name,
             arguments.out);
  return kExitDone;
}

// An import has no fingerprint of inputs: it is the same import if the result is equal.
Result<void> check_same_import(const ImportArguments& arguments, const std::vector<RunFile>& files) {
  for (const RunFile& file : files) {
    if (file.name != "run.binpb" || arguments.force) continue;
    const Result<v1::RunResult> old = read_result(arguments.out);
    if (old && old->SerializeAsString() == file.bytes) return {};
    return check_replaceable(arguments.out, kNoFingerprint, false);
  }
  return {};
}

int import_run(const ImportArguments& arguments) {
  std::error_code ignored;
  if (arguments.format == "vidur" ||
      (arguments.format == "auto" && fs::is_directory(arguments.file, ignored)))
    return import_profile(arguments);
  Result<MeasuredRun> run = read_measured(arguments);
  if (!run) return complain(run.error());
  if (!arguments.name.empty()) run->name = arguments.name;
  const std::string name = run->name;
  const size_t requests = run->requests.size();
  const std::vector<RunFile> files = measured_files(std::move(*run));
  if (const Result<void> ok = check_same_import(arguments, files); !ok) return complain(ok.error());
  if (Result<void> ok = replace_run(arguments.out, files); !ok) return complain(ok.error(), kExitEnvironment);
  fmt::print("{}: {}, {} {}; to compare it with a run: kvtwin report {} RUN\n", arguments.out, name, requests,
             plural(requests, "request"), arguments.out);
  return kExitDone;
}

}  // namespace

void add_import_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("import");
  const auto arguments = std::make_shared<ImportArguments>();
  command->add_option("FILE", arguments->file)->required();
  command->add_option("--out", arguments->out)->required();
  command->add_option("--format", arguments->format);
  command->add_option("--run", arguments->run);
  command->add_option("--before", arguments->before);
  command->add_option("--seconds", arguments->seconds);
  command->add_option("--name", arguments->name);
  command->add_option("--model", arguments->model);
  command->add_option("--gpu", arguments->gpu);
  command->add_flag("--force", arguments->force);
  command->callback([arguments, status] { *status = import_run(*arguments); });
}

}  // namespace kvtwin
