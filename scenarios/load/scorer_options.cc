// Options of scorers are fields of v1::ScorerOptions, read by reflection: which of them a scorer reads, their
// defaults, limits and names are its definition's (kernels/scoring/scorers.cc). The options that change the
// plan (compression_trigger, window_closed, probe_tokens, repeat_*) are the policy's integers.

#include "scenarios/load/scorer_options.h"

#include <fmt/format.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <optional>

#include "engine/methods/axis_factories.h"
#include "models/files/textproto.h"
#include "scenarios/load/external_process.h"
#include "scenarios/load/in_process_scorers.h"
#include "scenarios/load/names.h"

namespace kvtwin {
namespace {

using google::protobuf::FieldDescriptor;
using kernels::ScorerDefinition;
using kernels::ScorerOption;

constexpr NameTable<CompressionTrigger, 4> kTriggers{{{{"chunk_end", CompressionTrigger::kChunkEnd},
                                                       {"prompt_end", CompressionTrigger::kPromptEnd},
                                                       {"turn_start", CompressionTrigger::kTurnStart},
                                                       {"decode_step", CompressionTrigger::kDecodeStep}}}};

const FieldDescriptor& field_of(const ScorerOption& option) {
  const FieldDescriptor* const field =
      v1::ScorerOptions::descriptor()->FindFieldByName(std::string(option.field));
  KVT_CHECK(field != nullptr);
  return *field;
}

std::vector<std::string> names_of(const ScorerOption& option) {
  return {option.choices.begin(), option.choices.end()};
}

// The option's value as its definition counts it; nullopt: a name that is none of its choices.
std::optional<double> value_of(const v1::ScorerOptions& options, const ScorerOption& option) {
  const FieldDescriptor& field = field_of(option);
  const google::protobuf::Reflection& read = *options.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string name = read.GetString(options, &field);
      const auto at = std::find(option.choices.begin(), option.choices.end(), name);
      if (at == option.choices.end()) return std::nullopt;
      return static_cast<double>(at - option.choices.begin());
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      return read.GetBool(options, &field) ? 1 : 0;
    case FieldDescriptor::CPPTYPE_UINT32:
      return read.GetUInt32(options, &field);
    default:
      KVT_CHECK(field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE);
      return read.GetDouble(options, &field);
  }
}

void set_value(const ScorerOption& option, double value, v1::ScorerOptions* options) {
  const FieldDescriptor& field = field_of(option);
  const google::protobuf::Reflection& write = *options->GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return write.SetString(options, &field, std::string(option.choices[static_cast<size_t>(value)]));
    case FieldDescriptor::CPPTYPE_BOOL:
      return write.SetBool(options, &field, value != 0);
    case FieldDescriptor::CPPTYPE_UINT32:
      return write.SetUInt32(options, &field, static_cast<uint32_t>(value));
    default:
      return write.SetDouble(options, &field, value);
  }
}

// Sets what is written, in the order of the definition. Names that are unknown are left at the default.
void read_options(const v1::ScorerOptions& in, kernels::ScoreSpec* out) {
  for (const ScorerOption& option : out->scorer->options) {
    if (!in.GetReflection()->HasField(in, &field_of(option))) continue;
    if (const std::optional<double> value = value_of(in, option)) option.set(out, *value);
  }
}

class ScorerChecker {
 public:
  ScorerChecker(const Scenario& scenario, Errors* errors)
      : scenario_(scenario), options_(scenario.values.policies().scorer_options()), errors_(*errors) {}

  void add(std::string_view field, std::string what, std::string hint) {
    errors_.push_back(
        {scenario_.where("policies.scorer_options." + std::string(field)), std::move(what), std::move(hint)});
  }
  void choice(std::string_view field, const std::string& value, const std::vector<std::string>& known) {
    if (std::find(known.begin(), known.end(), value) != known.end()) return;
    const std::string close = did_you_mean(value, known);
    add(field, fmt::format("{} is \"{}\"", field, value),
        close.empty() ? fmt::format("one of: {}", fmt::join(known, ", ")) : close);
  }
  template <typename T>
  void range(std::string_view field, T value, double low, double high) {
    const auto number = static_cast<double>(value);
    if (number >= low && number <= high) return;
    add(field, fmt::format("{} is {}", field, value), fmt::format("from {} to {}", low, high));
  }

  void policy() {
    const v1::ScorerOptions& o = options_;
    const double rows = 65'536, tokens = 1u << 24;
    if (o.has_compression_trigger())
      choice("compression_trigger", o.compression_trigger(), kTriggers.names());
    if (o.has_probe_tokens()) range("probe_tokens", o.probe_tokens(), 1, rows);
    if (o.has_repeat_tokens()) range("repeat_tokens", o.repeat_tokens(), 1, tokens);
    if (o.has_repeat_tail()) range("repeat_tail", o.repeat_tail(), 0, rows);
    if (o.has_repeat_instruction()) range("repeat_instruction", o.repeat_instruction(), 0, rows);
  }

  void own(const ScorerOption& option) {
    const FieldDescriptor& field = field_of(option);
    if (!options_.GetReflection()->HasField(options_, &field)) return;
    if (!option.choices.empty())
      return choice(option.field, options_.GetReflection()->GetString(options_, &field), names_of(option));
    const double value = *value_of(options_, option);
    range(option.field, value, option.low, option.high);
    const bool even = static_cast<uint32_t>(value) % 2 == 0;
    if (option.odd && even && value >= option.low && value <= option.high)
      add(option.field, fmt::format("{} is {}", option.field, value), "an odd number");
  }

 private:
  const Scenario& scenario_;
  const v1::ScorerOptions& options_;
  Errors& errors_;
};

}  // namespace

v1::ScorerOptions default_scorer_options(const std::string& scorer, const std::string& code_base) {
  v1::ScorerOptions out;
  const ScorerDefinition* const definition = kernels::find_scorer(scorer);
  if (definition == nullptr || definition == kernels::all_scorers().front()) return out;
  out.set_compression_trigger(std::string(kTriggers.name(make_scorer(scorer, {})->compression_trigger())));
  ScorerSpec closed;
  closed.window_closed = true;
  if (!validate_scorer(scorer, closed)) out.set_window_closed(false);
  if (definition->source == kernels::ScoreSource::kProbes) out.set_probe_tokens(captured_queries(scorer, {}));
  if (definition->source == kernels::ScoreSource::kRepeats) {
    out.set_repeat_tokens(ScorerSpec().repeat_tokens);
    out.set_repeat_tail(ScorerSpec().repeat_tail);
    out.set_repeat_instruction(ScorerSpec().repeat_instruction);
  }
  kernels::ScoreSpec spec = kernels::score_spec(scorer);
  v1::ScorerOptions variant;
  variant.set_code_base(code_base);
  read_options(variant, &spec);
  for (const ScorerOption& option : definition->options) set_value(option, option.get(spec), &out);
  return out;
}

void complete_scorer_options(v1::Policies* policies) {
  v1::ScorerOptions options =
      default_scorer_options(policies->scorer(), policies->scorer_options().code_base());
  options.MergeFrom(policies->scorer_options());
  if (options.ByteSizeLong() > 0) *policies->mutable_scorer_options() = options;
}

void check_scorer_options(const Scenario& scenario, Errors* errors) {
  const v1::Policies& policies = scenario.values.policies();
  const ScorerDefinition* const scorer = kernels::find_scorer(policies.scorer());
  if (scorer == nullptr || !policies.has_scorer_options()) return;
  const v1::ScorerOptions& given = policies.scorer_options();
  const v1::ScorerOptions read = default_scorer_options(policies.scorer(), given.code_base());
  std::vector<const FieldDescriptor*> fields;
  given.GetReflection()->ListFields(given, &fields);
  ScorerChecker check(scenario, errors);
  for (const auto* field : fields) {
    // Without a default: an absent seed is the scenario's, and an external scorer must have its command.
    const bool seed = field->name() == "seed" && scorer->source == kernels::ScoreSource::kDraws;
    const bool command = field->name() == "command" && scorer->external;
    if (seed || command || read.GetReflection()->HasField(read, field)) continue;
    std::vector<const FieldDescriptor*> known;
    read.GetReflection()->ListFields(read, &known);
    std::string names;
    for (const auto* one : known) names += (names.empty() ? "" : ", ") + one->name();
    check.add(field->name(), fmt::format("scorer {} does not read {}", policies.scorer(), field->name()),
              names.empty() ? "it has no options" : "it reads " + names);
  }
  if (scorer->external && given.command().empty())
    check.add("command", "there is no program that scores", "set command: \"python3 my_scorer.py\"");
  if (scorer->external && is_in_process(given.command()) && in_process_scorer(given.command()) == nullptr)
    check.add("command", fmt::format("this process has no scorer for \"{}\"", given.command()),
              "kvtwin.run(..., scorer=function) in Python; or set command: \"python3 my_scorer.py\"");
  check.policy();
  for (const ScorerOption& option : scorer->options) check.own(option);
}

ScorerSpec scorer_spec(const v1::Policies& policies) {
  const v1::ScorerOptions& in = policies.scorer_options();
  ScorerSpec out;
  if (in.has_compression_trigger()) out.compression_trigger = kTriggers.value(in.compression_trigger());
  out.query_tokens = in.query_tokens();
  out.probe_tokens = in.probe_tokens();
  out.window_closed = in.window_closed();
  if (in.has_repeat_tokens()) out.repeat_tokens = in.repeat_tokens();
  if (in.has_repeat_tail()) out.repeat_tail = in.repeat_tail();
  if (in.has_repeat_instruction()) out.repeat_instruction = in.repeat_instruction();
  return out;
}

kernels::ScoreSpec score_spec(const v1::Scenario& values) {
  const v1::ScorerOptions& in = values.policies().scorer_options();
  kernels::ScoreSpec out = kernels::score_spec(values.policies().scorer());
  read_options(in, &out);
  out.page_tokens = values.memory().page_tokens();
  out.seed = in.has_seed() ? in.seed() : values.seed();
  if (out.scorer->external) {
    out.external =
        is_in_process(in.command()) ? in_process_scorer(in.command()) : external_process(in.command());
  }
  return out;
}

}  // namespace kvtwin
