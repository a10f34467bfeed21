#include "scenarios/load/unread_fields.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/methods/scorer_traits.h"
#include "engine/methods/traits.h"
#include "kernels/scoring/scorer.h"
#include "scenarios/load/names.h"

namespace kvtwin {
namespace {

bool one_of(const std::string& value, std::initializer_list<std::string_view> known) {
  return std::find(known.begin(), known.end(), value) != known.end();
}

bool has_format(const v1::Scenario& values, std::initializer_list<std::string_view> formats) {
  const std::string& format = values.trace().format();
  return format == "auto" || one_of(format, formats);
}

bool fixed_population(const v1::Scenario& v) { return v.replay().arrivals() == "fixed_population"; }
bool poisson(const v1::Scenario& v) { return v.replay().arrivals() == "poisson"; }
// Recorded times are read as arrivals, or as the times of requests in open loops (replay_session.cc).
bool recorded_times(const v1::Scenario& v) {
  return v.replay().arrivals() == "recorded" || v.replay().mode() != "closed_loop";
}
// Open loops use the recorded times of requests, which already include tools and thinking.
bool closed_loop(const v1::Scenario& v) { return one_of(v.replay().mode(), {"auto", "closed_loop"}); }
bool retries(const v1::Scenario& v) { return v.replay().on_reject() == "retry"; }
bool mooncake_rows(const v1::Scenario& v) {
  return has_format(v, {"mooncake", "mooncake-delta", "agentic_mooncake"});
}
bool mooncake(const v1::Scenario& v) { return has_format(v, {"mooncake"}); }
bool weka(const v1::Scenario& v) { return has_format(v, {"weka"}); }
bool sized_by_memory(const v1::Scenario& v) {
  return v.memory().gpu_pages() == 0 || v.engines().further_size() > 0;
}
bool host_tier(const v1::Scenario& v) { return v.memory().host_bytes() > 0; }
bool disk_tier(const v1::Scenario& v) { return v.memory().disk_bytes() > 0; }
bool prefix_cache(const v1::Scenario& v) { return v.limits().prefix_cache(); }
bool drops(const v1::Scenario& v) {
  return !budget_traits(v.policies().budget()).keeps_all ||
         layout_traits(v.policies().layout()).slot_retention == SlotRetention::kRing ||
         v.simulation().retained() != "fixed";
}
// The scorer that goes with a budget that keeps all may be named.
bool scores(const v1::Scenario& v) {
  return drops(v) || v.policies().scorer() == default_scenario("").policies().scorer();
}
HeadTable table(const v1::Scenario& v) { return budget_traits(v.policies().budget()).table; }
bool pyramid(const v1::Scenario& v) { return table(v) == HeadTable::kLayers; }
bool released(const v1::Scenario& v) {
  return budget_traits(v.policies().budget()).counted_by == CountedBy::kChunkRule;
}
bool reserved(const v1::Scenario& v) { return table(v) == HeadTable::kCalibrated; }
bool head_masks(const v1::Scenario& v) { return table(v) == HeadTable::kMasks; }
bool head_groups(const v1::Scenario& v) { return layout_traits(v.policies().layout()).has_groups; }
PrecisionTraits precision(const v1::Scenario& v) { return precision_traits(v.policies().precision()); }
bool packs_groups(const v1::Scenario& v) { return precision(v).reads_group; }
bool residual(const v1::Scenario& v) { return precision(v).exact == ExactTokens::kResidual; }
bool by_tag(const v1::Scenario& v) { return precision(v).by_tag; }
PartitionKind partition(const v1::Scenario& v) { return partition_kind(v.policies().partition()); }
bool uniform_cut(const v1::Scenario& v) { return partition(v) == PartitionKind::kUniform; }
bool flash_decoding(const v1::Scenario& v) { return partition(v) == PartitionKind::kFlashDecoding; }
bool flashinfer(const v1::Scenario& v) { return partition(v) == PartitionKind::kFlashInfer; }
bool aot(const v1::Scenario& v) { return partition(v) == PartitionKind::kAotFractions; }
bool computed(const v1::Scenario& v) { return v.backend() != "sim"; }
// Token ids, or roles that they give.
bool reads_ids(const v1::Scenario& v) {
  return computed(v) || by_tag(v) || scorer_traits(v.policies().scorer()).reads_roles;
}
bool wall_clock(const v1::Scenario& v) { return v.clock() == "wall"; }
bool scores_by(const v1::Scenario& v, kernels::ScoreSource source) {
  const kernels::ScorerDefinition* const scorer = kernels::find_scorer(v.policies().scorer());
  return computed(v) && scorer != nullptr && scorer->source == source;
}
bool probes(const v1::Scenario& v) { return scores_by(v, kernels::ScoreSource::kProbes); }
bool repeats(const v1::Scenario& v) { return scores_by(v, kernels::ScoreSource::kRepeats); }
bool cuda(const v1::Scenario& v) { return v.backend() == "cuda"; }

struct Row {
  std::string_view field;
  bool (*reads)(const v1::Scenario& values);
  std::string_view chosen_by;  // the field that decides
  std::string_view makes_it_count;
};

// Fields of scorer_options.cc and retrieval_options.cc are absent here: those files check them with their
// values.
constexpr std::array kRows = std::to_array<Row>({
    {"replay.population", fixed_population, "replay.arrivals", "fixed_population"},
    {"replay.sessions_per_s", poisson, "replay.arrivals", "poisson"},
    {"replay.arrival_scale", recorded_times, "replay.arrivals", "recorded"},
    {"replay.tool_scale", closed_loop, "replay.mode", "closed_loop"},
    {"replay.think_scale", closed_loop, "replay.mode", "closed_loop"},
    {"replay.delay_scale", closed_loop, "replay.mode", "closed_loop"},
    {"replay.think_cap_s", closed_loop, "replay.mode", "closed_loop"},
    {"replay.retries_max", retries, "replay.on_reject", "retry"},
    {"replay.chat_template", reads_ids, "policies.precision", "triaxial"},
    {"trace.block_tokens", mooncake_rows, "trace.format", "mooncake"},
    {"trace.infer_sessions", mooncake, "trace.format", "mooncake"},
    {"trace.jitter_ns", mooncake, "trace.format", "mooncake"},
    {"trace.prefix_sharing", weka, "trace.format", "weka"},
    {"trace.all_files", weka, "trace.format", "weka"},
    {"memory.gpu_fraction", sized_by_memory, "memory.gpu_pages", "0"},
    {"memory.capacity", sized_by_memory, "memory.gpu_pages", "0"},
    {"limits.evict_batch_pages", prefix_cache, "limits.prefix_cache", "true"},
    {"limits.offload_batch_pages", host_tier, "memory.host_bytes", "64000000000"},
    {"limits.offload_pages_target", host_tier, "memory.host_bytes", "64000000000"},
    {"limits.spill_pages_target", disk_tier, "memory.disk_bytes", "1000000000000"},
    {"policies.prefix_eviction", prefix_cache, "limits.prefix_cache", "true"},
    {"policies.scorer", scores, "policies.budget", "uniform"},
    {"policies.budget_options.sinks", drops, "policies.budget", "ratio"},
    {"policies.budget_options.window", drops, "policies.budget", "ratio"},
    {"policies.budget_options.chunk_tokens", drops, "policies.budget", "ratio"},
    {"policies.budget_options.interval", drops, "policies.budget", "ratio"},
    {"policies.budget_options.ratio", drops, "policies.budget", "ratio"},
    {"policies.budget_options.kv_entries", drops, "policies.budget", "uniform"},
    {"policies.budget_options.sinks_free", drops, "policies.budget", "uniform"},
    {"policies.budget_options.pyramid_beta", pyramid, "policies.budget", "pyramid"},
    {"policies.budget_options.retained_min", released, "policies.budget", "released"},
    {"policies.budget_options.uniform_depth", released, "policies.budget", "released"},
    {"policies.budget_options.alpha", reserved, "policies.budget", "reserved"},
    {"policies.budget_options.inflation", reserved, "policies.budget", "reserved"},
    {"policies.budget_options.decode_reserve", reserved, "policies.budget", "reserved"},
    {"policies.budget_options.full_heads", head_masks, "policies.budget", "head_masks"},
    {"policies.layout_options.heads_per_group", head_groups, "policies.layout", "ragged"},
    {"policies.layout_options.clustering", head_groups, "policies.layout", "ragged"},
    {"policies.precision_options.group", packs_groups, "policies.precision", "int4"},
    {"policies.precision_options.residual_tokens", residual, "policies.precision", "kivi_int2"},
    {"policies.precision_options.tag_map", by_tag, "policies.precision", "triaxial"},
    {"policies.precision_options.bits", by_tag, "policies.precision", "triaxial"},
    {"policies.precision_options.ageing", by_tag, "policies.precision", "triaxial"},
    {"policies.partition_options.uniform_splits", uniform_cut, "policies.partition", "uniform"},
    {"policies.partition_options.flash_splits_max", flash_decoding, "policies.partition", "flash_decoding"},
    {"policies.partition_options.plan_ns", flashinfer, "policies.partition", "flashinfer"},
    {"policies.partition_options.aot_weight", aot, "policies.partition", "aot"},
    {"policies.partition_options.aot_exact_grid", aot, "policies.partition", "aot"},
    {"policies.partition_options.aot_waves", aot, "policies.partition", "aot"},
    {"policies.partition_options.profile", aot, "policies.partition", "aot"},
    {"policies.partition_options.alpha", aot, "policies.partition", "aot"},
    {"cpu.decode", computed, "backend", "cpu"},
    {"cpu.scorer_weights", computed, "backend", "cpu"},
    {"cpu.sleep", wall_clock, "clock", "wall"},
    {"cpu.judge_tokens", probes, "policies.scorer", "judge_q"},
    {"cpu.repeat_instruction", repeats, "policies.scorer", "kvzip"},
    {"cuda.timings", cuda, "backend", "cuda"},
});

// The present value of the deciding field, for messages.
std::string value_of(const v1::Scenario& values, std::string_view path) {
  const google::protobuf::Message* message = &values;
  for (size_t begin = 0;;) {
    const size_t dot = path.find('.', begin);
    const std::string name(path.substr(begin, dot == std::string_view::npos ? dot : dot - begin));
    const google::protobuf::FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(name);
    const google::protobuf::Reflection* reflection = message->GetReflection();
    if (dot != std::string_view::npos) {
      message = &reflection->GetMessage(*message, field);
      begin = dot + 1;
      continue;
    }
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING)
      return reflection->GetString(*message, field);
    std::string text;
    google::protobuf::TextFormat::PrintFieldValueToString(*message, field, -1, &text);
    return text;
  }
}

}  // namespace

std::optional<Error> why_unread(const v1::Scenario& values, const std::string& field,
                                const std::string& where) {
  const auto row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& one) { return one.field == field; });
  if (row == kRows.end() || row->reads(values)) return std::nullopt;
  return Error{
      where,
      fmt::format("{} is not read where {} is {}", field, row->chosen_by, value_of(values, row->chosen_by)),
      fmt::format("it is read with --set={}={}", row->chosen_by, row->makes_it_count)};
}

Errors unread_sets(const std::vector<v1::Scenario>& all, const std::vector<std::string>& sets) {
  Errors out;
  for (const std::string& set : sets) {
    std::optional<Error> unread;
    for (const v1::Scenario& values : all) {
      unread = why_unread(values, set.substr(0, set.find('=')), "--set=" + set);
      if (!unread) break;
    }
    if (unread) out.push_back(*unread);
  }
  return out;
}

Errors unread_sets(const v1::Scenario& values, ReplayMode mode, const std::vector<std::string>& sets) {
  v1::Scenario read = values;
  if (values.replay().mode() == "auto") read.mutable_replay()->set_mode(std::string(kReplayModes.name(mode)));
  return unread_sets(std::vector{read}, sets);
}

}  // namespace kvtwin
