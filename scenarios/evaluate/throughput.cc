#include "scenarios/evaluate/throughput.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>

#include "engine/methods/traits.h"
#include "models/files/textproto.h"
#include "scenarios/app/results.h"
#include "scenarios/evaluate/cells.h"
#include "scenarios/load/inputs.h"
#include "scenarios/load/shipped.h"
#include "scenarios/sweep/pool.h"
#include "traces/importers/formats.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;
namespace pb = google::protobuf;

// Prompt lengths of a trace, in tokens.
class Prompts final : public TraceSink {
 public:
  Result<void> header(const v1::TraceHeader&) override { return {}; }
  Result<void> shared_spans(const v1::SharedSpanTable&) override { return {}; }
  Result<void> session(const v1::Session& session) override {
    for (const v1::Node& node : session.nodes()) {
      if (!node.has_llm()) continue;
      tokens_ += node.llm().prompt_tokens();
      ++requests_;
    }
    return {};
  }
  double mean() const {
    return requests_ > 0 ? static_cast<double>(tokens_) / static_cast<double>(requests_) : 0;
  }

 private:
  uint64_t tokens_ = 0, requests_ = 0;
};

std::string printed(const v1::Scenario& scenario) {
  pb::TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  printer.PrintToString(scenario, &text);
  return "# proto-file: traces/proto/scenario.proto\n# proto-message: kvtwin.v1.Scenario\n" + text;
}

// A load without its policies, and the options of its policies, which some sets take (take_from_load()).
struct Load {
  std::string path;
  Scenario scenario;
  v1::Policies options;
  double mean_prompt = 0;  // tokens
};

Result<Load> read_load(const std::string& given) {
  const Result<std::string> found = find_scenario(given);
  if (!found) return tl::unexpected<Error>(found.error());
  const std::string& path = *found;
  const Result<std::string> text = read_text_file(path);
  if (!text) return tl::unexpected<Error>(text.error());
  v1::Scenario written;
  if (!pb::TextFormat::ParseFromString(*text, &written))
    return make_error(path, "is not a scenario", "use scenarios/quality/load/h200_llama8b.textproto");
  Load out;
  out.options = written.policies();
  written.clear_policies();
  tl::expected<Scenario, Errors> scenario = parse_scenario(printed(written), path, {});
  if (!scenario) return tl::unexpected<Error>(joined(scenario.error()));
  out.path = path, out.scenario = std::move(*scenario);
  const v1::TraceChoice& trace = out.scenario.values.trace();
  Prompts prompts;
  if (auto ok = import_trace(trace.format(), out.scenario.file(trace.path()), {}, &prompts); !ok)
    return tl::unexpected<Error>(ok.error());
  out.mean_prompt = prompts.mean();
  return out;
}

// The scenario with all paths absolute.
v1::Scenario resolved(const Scenario& scenario) {
  v1::Scenario out;
  pb::TextFormat::ParseFromString(resolved_textproto(scenario), &out);
  return out;
}

// Copies policy options of the load into sets that read them.
void take_from_load(const v1::Policies& written, v1::Policies* policies) {
  if (!retrieval_traits(policies->retrieval()).reads_everything())
    policies->mutable_retrieval_options()->MergeFrom(written.retrieval_options());
  if (budget_traits(policies->budget()).table == HeadTable::kCalibrated &&
      written.budget_options().mean_size() > 0) {
    v1::BudgetOptions& fractions = *policies->mutable_budget_options();
    fractions.clear_profile();
    *fractions.mutable_mean() = written.budget_options().mean();
    *fractions.mutable_deviation() = written.budget_options().deviation();
  }
}

// Tokens of the sessions of a row: 384 for "tokens=384 per_session=6 seed=1".
uint32_t session_tokens(const QualityRow& row) {
  unsigned tokens = 0;
  return std::sscanf(row.asked.c_str(), "tokens=%u", &tokens) == 1 ? tokens : 0;
}

std::string file_of(const EvaluateRequest& request, const std::string& policy) {
  for (const std::string& path : request.scenarios) {
    if (fs::path(path).stem() == policy) return path;
  }
  std::error_code ignored;
  const fs::path path = fs::path(request.sets_in) / (policy + ".textproto");
  return !request.sets_in.empty() && fs::is_regular_file(path, ignored) ? path.string() : "";
}

// The load with the policies of `set`, as text to parse in the load's folder. Only policies of `sets`
// ("field=value") apply. `fraction` is KV entries per head over tokens of a session; 0: the set has no
// budget. Errors: of the set, or of the combination.
Result<std::string> load_scenario_text(const Load& load, const std::string& set,
                                       const std::vector<std::string>& sets, double fraction) {
  std::vector<std::string> all = {"trace.path=" +
                                  resolved(load.scenario).trace().path()};  // the set itself has no trace
  for (const std::string& one : sets) {
    if (one.rfind("policies.", 0) == 0) all.push_back(one);
  }
  const tl::expected<Scenario, Errors> asked = load_scenario(set, all);
  if (!asked) return tl::unexpected<Error>(joined(asked.error()));
  const v1::Scenario own = resolved(*asked);
  if (precision_traits(own.policies().precision()).by_tag)
    return make_error(asked->where("policies.precision"),
                      "has bits by token tag, but the load's tokens have no tags",
                      "int4, or a load of sessions");
  v1::Scenario out = resolved(load.scenario);
  *out.mutable_policies() = own.policies();
  take_from_load(load.options, out.mutable_policies());
  out.set_name(fs::path(set).stem().string() + "_on_" + fs::path(load.path).stem().string());
  out.set_description(own.description());
  out.mutable_limits()->set_prefix_cache(own.limits().prefix_cache());
  if (own.memory().host_bytes() == 0) out.mutable_memory()->set_host_bytes(0);
  out.clear_cpu();  // nothing is computed
  if (fraction <= 0) return printed(out);
  // Retrieval reads whole pages.
  const uint32_t unit = retrieval_traits(out.policies().retrieval()).reads_everything()
                            ? 1
                            : std::max(1U, out.memory().page_tokens());
  const auto kv_entries = unit * static_cast<uint32_t>(std::lround(fraction * load.mean_prompt / unit));
  const tl::expected<Scenario, Errors> whole = parse_scenario(printed(out), load.path, {});
  if (!whole) return tl::unexpected<Error>(joined(whole.error()));
  const tl::expected<Scenario, Errors> cut =
      parse_scenario(printed(out), load.path, budget_sets(*whole, kv_entries, load.mean_prompt));
  if (!cut) return tl::unexpected<Error>(joined(cut.error()));
  return resolved_textproto(*cut);
}

// A simulation that rows need.
struct Waiting {
  std::string folder, scenario, why;  // why: the reason if there is none
};

using SetAndFraction = std::pair<std::string, double>;

Result<Waiting> prepare(const EvaluateRequest& request, const Load& load, const std::string& set,
                        double fraction, PathDigests* digests) {
  const Result<std::string> text = load_scenario_text(load, set, request.sets, fraction);
  if (!text) return Waiting{"", "", text.error().text()};
  const tl::expected<Scenario, Errors> scenario = parse_scenario(*text, load.path, {});
  if (!scenario) return Waiting{"", "", joined(scenario.error()).text()};
  const Result<uint64_t> inputs = inputs_fingerprint(*scenario, digests);
  if (!inputs) return tl::unexpected<Error>(inputs.error());
  const fs::path folder = fs::path(request.out) / "throughput" / fmt::format("{:016x}", *inputs);
  const Result<void> ok = write_files(folder.string(), {{"scenario.textproto", *text}});
  if (!ok) return tl::unexpected<Error>(ok.error());
  return Waiting{folder.string(), (folder / "scenario.textproto").string(), ""};
}

// A run's folder holds nothing else; scenario and log lie next to it.
std::string run_of(const std::string& folder) { return folder + "/run"; }

Result<void> run_all(const std::vector<Waiting>& all, const std::string& program, uint32_t processes) {
  std::map<std::string, std::string> todo;  // by folder: sets with equal timing have one folder
  for (const Waiting& one : all) {
    if (one.why.empty() && !read_result(run_of(one.folder))) todo[one.folder] = one.scenario;
  }
  std::vector<Job> jobs;
  for (const auto& [folder, scenario] : todo)
    jobs.push_back({{"run", scenario, "--quiet", "--force", "--out=" + run_of(folder)}, folder + "/log.txt"});
  return run_jobs(program, jobs, {processes}, [](const JobEnd&) { return true; });
}

}  // namespace

Result<void> add_throughput(const EvaluateRequest& request, const std::string& program, uint32_t processes,
                            std::vector<QualityRow>* rows,
                            const std::function<void(const std::string&)>& report) {
  const Result<Load> load = read_load(request.load);
  if (!load) return tl::unexpected<Error>(load.error());
  PathDigests digests;
  std::map<SetAndFraction, Waiting> known;
  std::vector<Waiting> all;
  for (const QualityRow& row : *rows) {
    const std::string file = file_of(request, row.policy);
    const uint32_t tokens = session_tokens(row);
    if (file.empty() || tokens == 0 || !row.refused.empty()) continue;
    const SetAndFraction key{file, static_cast<double>(row.budget) / tokens};
    if (known.contains(key)) continue;
    const Result<Waiting> one = prepare(request, *load, key.first, key.second, &digests);
    if (!one) return tl::unexpected<Error>(one.error());
    if (!one->why.empty()) report(fmt::format("{}: {}\n", row.policy, one->why));
    all.push_back(known[key] = *one);
  }
  if (Result<void> ok = run_all(all, program, processes); !ok) return ok;
  for (QualityRow& row : *rows) {
    const uint32_t tokens = session_tokens(row);
    if (tokens == 0) continue;
    const auto found = known.find({file_of(request, row.policy), static_cast<double>(row.budget) / tokens});
    if (found == known.end()) continue;
    const Result<v1::RunResult> run = read_result(run_of(found->second.folder));
    row.simulated_tokens_per_s = run ? run->rates().output_tokens_per_s() : 0;
    row.simulated_load = run ? fs::path(request.load).stem().string() : "";
    if (!run && found->second.why.empty())
      report(fmt::format("{} {}: the simulation failed, see {}/log.txt\n", row.policy, row.budget,
                         found->second.folder));
  }
  return {};
}

}  // namespace kvtwin
