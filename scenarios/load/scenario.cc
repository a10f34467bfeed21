#include "scenarios/load/scenario.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "engine/methods/traits.h"
#include "models/catalog/catalog.h"
#include "models/files/textproto.h"
#include "scenarios/load/field_values.h"
#include "scenarios/load/foreign_words.h"
#include "scenarios/load/gpu_at_hand.h"
#include "scenarios/load/retrieval_options.h"
#include "scenarios/load/scorer_options.h"
#include "scenarios/load/shipped.h"
#include "scenarios/load/units_in_text.h"
#include "traces/importers/formats.h"

namespace kvtwin {
namespace {

namespace pb = google::protobuf;
namespace fs = std::filesystem;

constexpr size_t kScenarioBytesMax = size_t{1} << 20;
constexpr size_t kErrorsMax = 50;  // a binary file would otherwise fill the screen
constexpr char kDataVariable[] = "$KVTWIN_DATA";

std::string place(const std::string& path, int line, int column) {
  return line < 0 ? path : fmt::format("{}:{}:{}", path, line + 1, column + 1);
}

std::vector<std::string> field_names(const pb::Descriptor* type) {
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
  return names;
}

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  if (const std::string hint = foreign_hint(word); !hint.empty()) return hint;
  const std::string close = did_you_mean(word, known);
  return close.empty() ? fmt::format("known are: {}", fmt::join(known, ", ")) : close;
}

// Translates the text parser's messages into our own. Unknown fields reach it as warnings, so that one load
// finds all of them.
class Collector : public pb::io::ErrorCollector {
 public:
  Collector(const std::string& path, const PlainText& text, Errors* errors)
      : path_(path), text_(text), errors_(errors) {}

  void AddError(int line, pb::io::ColumnNumber column, const std::string& what) override {
    const bool at_end = what.ends_with("got: ") || what.ends_with("found \"\".");
    add(line, column, at_end ? "the file ends within a message" : what,
        at_end ? "name { ... }: each { has its }" : std::string());
  }

  void AddWarning(int line, pb::io::ColumnNumber column, const std::string& what) override {
    const size_t type_at = what.find("Message type \""), field_at = what.find("has no field named \"");
    if (type_at == std::string::npos || field_at == std::string::npos) return add(line, column, what, {});
    const auto quoted = [&](size_t from) {
      const size_t begin = what.find('"', from) + 1;
      return what.substr(begin, what.find('"', begin) - begin);
    };
    const std::string field = quoted(field_at);
    column = start_of(field, line, column);  // the parser names the place after it
    const pb::Descriptor* type =
        v1::Scenario::descriptor()->file()->pool()->FindMessageTypeByName(quoted(type_at));
    if (type == nullptr) return add(line, column, what, {});
    add(line, column, fmt::format("no field \"{}\" in {}", field, type->name()),
        nearest(field, field_names(type)));
  }

 private:
  int start_of(const std::string& field, int line, int column) const {
    size_t begin = 0;
    const std::string_view text = text_.text();
    for (int i = 0; i < line; ++i) begin = text.find('\n', begin) + 1;
    const size_t found = text.substr(begin, static_cast<size_t>(column)).rfind(field);
    return found == std::string_view::npos ? column : static_cast<int>(found);
  }

  void add(int line, int column, std::string what, std::string hint) {
    if (errors_->size() < kErrorsMax)
      errors_->push_back(
          {place(path_, line, text_.original_column(line, column)), std::move(what), std::move(hint)});
  }

  const std::string& path_;
  const PlainText& text_;
  Errors* const errors_;
};

void note_places(const pb::Message& message, const pb::TextFormat::ParseInfoTree& tree, const PlainText& text,
                 const std::string& path, const std::string& prefix,
                 std::map<std::string, std::string>* places) {
  std::vector<const pb::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const pb::FieldDescriptor* field : fields) {
    const int index = field->is_repeated() ? 0 : -1;
    const pb::TextFormat::ParseLocation at = tree.GetLocation(field, index);
    const std::string name = prefix + field->name();
    (*places)[name] = place(path, at.line, text.original_column(at.line, at.column));
    if (field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const pb::TextFormat::ParseInfoTree* below = tree.GetTreeForNested(field, index);
    if (below == nullptr) continue;
    const pb::Reflection* reflection = message.GetReflection();
    note_places(index < 0 ? reflection->GetMessage(message, field)
                          : reflection->GetRepeatedMessage(message, field, index),
                *below, text, path, name + ".", places);
  }
}

// Calls visit(field, &path) for every field that holds a path, except lists of messages.
template <typename Visit>
void for_each_path(v1::Scenario* scenario, Visit visit) {
  visit("trace.path", scenario->mutable_trace()->mutable_path());
  visit("cost.profile", scenario->mutable_cost()->mutable_profile());
  visit("cpu.checkpoint", scenario->mutable_cpu()->mutable_checkpoint());
  visit("cpu.scorer_weights", scenario->mutable_cpu()->mutable_scorer_weights());
  v1::Policies& policies = *scenario->mutable_policies();
  visit("policies.precision_options.tag_map", policies.mutable_precision_options()->mutable_tag_map());
  visit("policies.partition_options.profile", policies.mutable_partition_options()->mutable_profile());
  visit("policies.budget_options.profile", policies.mutable_budget_options()->mutable_profile());
  // The presence of these messages has a meaning, so they are accessed only where they are set.
  if (!scenario->simulation().recorded_run().empty())
    visit("simulation.recorded_run", scenario->mutable_simulation()->mutable_recorded_run());
  if (!scenario->simulation().retrieval().profile().empty())
    visit("simulation.retrieval.profile",
          scenario->mutable_simulation()->mutable_retrieval()->mutable_profile());
  if (is_catalog_path(scenario->model().name()))
    visit("model.name", scenario->mutable_model()->mutable_name());
  if (is_catalog_path(scenario->hardware().node()))
    visit("hardware.node", scenario->mutable_hardware()->mutable_node());
}

// A path on the command line is relative to the working directory; if it does not exist there, to the
// scenario file, like a path written in that file.
std::string from_working_directory(const std::string& written) {
  if (written.empty() || written.rfind(kDataVariable, 0) == 0) return written;
  std::error_code failed;
  const fs::path path = fs::absolute(written, failed).lexically_normal();
  return !failed && fs::exists(path, failed) ? path.string() : written;
}

Result<void> set_list(pb::Message* message, const pb::FieldDescriptor* field, const std::string& path,
                      const std::string& value) {
  message->GetReflection()->ClearField(message, field);
  for (size_t from = 0; !value.empty();) {
    const size_t comma = value.find(',', from);
    const std::string one = value.substr(from, comma == std::string::npos ? comma : comma - from);
    if (Result<void> ok = set_scalar(message, field, path, one); !ok || comma == std::string::npos) return ok;
    from = comma + 1;
  }
  return {};
}

void apply_set(const std::string& set, v1::Scenario* scenario, std::map<std::string, std::string>* places,
               Errors* errors) {
  const std::string where = "--set=" + set;
  const size_t equals = set.find('=');
  if (equals == std::string::npos) {
    errors->push_back({where, "has no value", "write --set=limits.requests_max=128"});
    return;
  }
  const std::string path = set.substr(0, equals), value = set.substr(equals + 1);
  pb::Message* message = scenario;
  for (size_t begin = 0;;) {
    const size_t dot = path.find('.', begin);
    const std::string name = path.substr(begin, dot == std::string::npos ? dot : dot - begin);
    const pb::FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(name);
    if (field == nullptr) {
      errors->push_back({where, fmt::format("no field \"{}\" in {}", name, message->GetDescriptor()->name()),
                         nearest(name, field_names(message->GetDescriptor()))});
      return;
    }
    const bool group = field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE;
    if (group && field->is_repeated()) {
      errors->push_back(
          {where, fmt::format("{} is a list of groups", name), "write it in the scenario's file"});
      return;
    }
    if (dot != std::string::npos && group) {
      message = message->GetReflection()->MutableMessage(message, field);
      begin = dot + 1;
      continue;
    }
    Result<void> good;
    if (dot != std::string::npos || group) {
      good = make_error("", fmt::format("\"{}\" is not a value of {}", value, path),
                        fmt::format("it takes {}", kind_of(field)));
    } else if (field->is_repeated()) {
      good = set_list(message, field, path, value);
    } else {
      good = set_scalar(message, field, path, value);
    }
    if (!good) errors->push_back({where, good.error().what, good.error().hint});
    (*places)[path] = where;
    return;
  }
}

}  // namespace

std::string Scenario::where(const std::string& field) const {
  const auto found = places.find(field);
  return found != places.end() ? found->second : fmt::format("{}: {}", path, field);
}

bool Scenario::on_command_line(const std::string& field) const {
  const auto found = places.find(field);
  return found != places.end() && found->second.starts_with("--set=");
}

std::string Scenario::file(const std::string& written) const {
  if (written.rfind(kDataVariable, 0) == 0) return data_dir(path) + written.substr(sizeof kDataVariable - 1);
  const fs::path given(written);
  if (given.is_absolute()) return written;
  return (fs::path(path).parent_path() / given).lexically_normal().string();
}

namespace {

// A preset's times of the server's host that do not apply: profiles contain the time of a step, and our
// engines have no front end.
void leave_out_host_times(const v1::Scenario& written, v1::Scenario* out) {
  const bool simulated = out->backend() == "sim";
  v1::Cost& cost = *out->mutable_cost();
  if (!written.cost().has_host_ns_per_step() && (!simulated || !cost.profile().empty()))
    cost.set_host_ns_per_step(0);
  if (simulated) return;
  if (!written.cost().has_front_end_request_ns()) cost.set_front_end_request_ns(0);
  if (!written.cost().has_front_end_token_ns()) cost.set_front_end_token_ns(0);
}

}  // namespace

std::string data_dir(const std::string& scenario_path) {
  if (const char* set = std::getenv("KVTWIN_DATA"); set != nullptr && *set != '\0') return set;
  std::error_code ignored;
  fs::path folder = fs::absolute(scenario_path, ignored).lexically_normal().parent_path();
  for (; folder.has_relative_path(); folder = folder.parent_path()) {
    if (fs::exists(folder / "CMakePresets.json", ignored)) break;
  }
  return (folder / ".." / "shared" / "data").lexically_normal().string();
}

tl::expected<Scenario, Errors> load_scenario(const std::string& given, const std::vector<std::string>& sets) {
  const Result<std::string> path = find_scenario(given);
  if (!path) return tl::unexpected(Errors{path.error()});
  const Result<std::string> text = read_text_file(*path, kScenarioBytesMax);
  tl::expected<Scenario, Errors> scenario =
      text ? parse_scenario(*text, *path, sets) : tl::unexpected(Errors{text.error()});
  if (scenario) return scenario;
  const Result<std::string> format = guess_format(*path);
  if (!format) return scenario;
  return tl::unexpected(
      Errors{{*path, fmt::format("is a trace (format {}), not a scenario", *format),
              fmt::format("a scenario names it, as in kvtwin run coding_agents_small --set=trace.path={} "
                          "--set=trace.format={}",
                          *path, *format)}});
}

tl::expected<Scenario, Errors> parse_scenario(std::string_view text, const std::string& path,
                                              const std::vector<std::string>& sets) {
  Errors errors;
  if (text.size() > kScenarioBytesMax) {
    return tl::unexpected(
        Errors{{path, fmt::format("is {} bytes long", text.size()), "a scenario has at most 1 MiB"}});
  }
  Scenario scenario;
  scenario.path = path;
  v1::Scenario written;
  if (const size_t bad = first_bad_utf8(text); bad != std::string_view::npos) {
    const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n') + 1;
    return tl::unexpected(Errors{
        {fmt::format("{}:{}", path, line), "has a character that is not UTF-8", "save the file as UTF-8"}});
  }
  const PlainText plain(text, v1::Scenario::descriptor());
  for (const PlainText::BadUnit& bad : plain.errors())
    errors.push_back({place(path, bad.line, bad.column), bad.error.what, bad.error.hint});
  Collector collector(path, plain, &errors);
  pb::TextFormat::ParseInfoTree tree;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&collector);
  parser.WriteLocationsTo(&tree);
  parser.AllowUnknownField(true);
  parser.SetRecursionLimit(16);
  pb::io::ArrayInputStream stream(plain.text().data(), static_cast<int>(plain.text().size()));
  const bool parsed = parser.Parse(&stream, &written);
  if (!parsed && errors.empty()) errors.push_back({path, "is not a textproto", {}});
  note_places(written, tree, plain, path, "", &scenario.places);
  for (const std::string& set : sets) apply_set(set, &written, &scenario.places, &errors);

  const std::string preset = written.limits().preset();
  scenario.values = default_scenario(preset);
  if (written.limits().capture_sizes_size() > 0) scenario.values.mutable_limits()->clear_capture_sizes();
  scenario.values.MergeFrom(written);
  if (scenario.values.name().empty()) scenario.values.set_name(fs::path(path).stem().string());
  if (Result<void> ok = resolve_this(&scenario.values); !ok) {
    Error error = ok.error();
    error.where = scenario.where(error.where);
    errors.push_back(std::move(error));
  }
  leave_out_host_times(written, &scenario.values);
  for_each_path(&scenario.values, [&](const char* field, std::string* path_given) {
    if (scenario.on_command_line(field)) *path_given = from_working_directory(*path_given);
  });
  resolve_retrieval(&scenario.values);
  if (scenario.values.policies().placement().empty()) {
    const bool resident = retrieval_traits(scenario.values.policies().retrieval()).needs_resident();
    const bool host = scenario.values.memory().host_bytes() > 0;
    scenario.values.mutable_policies()->set_placement(resident ? "resident" : host ? "host" : "gpu");
  }
  for (v1::EngineKind& kind : *scenario.values.mutable_engines()->mutable_further()) {
    if (!kind.has_count()) kind.set_count(1);
    if (!kind.has_tensor_parallel()) kind.set_tensor_parallel(1);
  }
  if (scenario.values.clock().empty())
    scenario.values.set_clock(scenario.values.backend() != "sim" ? "wall" : "virtual");
  complete_scorer_options(scenario.values.mutable_policies());
  // What follows from a file that cannot be parsed, or from a value with a bad unit, is not judged.
  if (plain.errors().empty() && parsed) check_scenario(scenario, &errors);
  if (!errors.empty()) return tl::unexpected(std::move(errors));
  return scenario;
}

std::string recorded_outcomes_file(const Scenario& scenario) {
  const std::string& run = scenario.values.simulation().recorded_run();
  if (run.empty()) return "";
  const fs::path path = scenario.file(run);
  std::error_code ignored;
  return (fs::is_directory(path, ignored) ? path / "outcomes.binpb" : path).string();
}

std::string resolved_textproto(const Scenario& scenario) {
  v1::Scenario out = scenario.values;
  const auto anchor = [&](const std::string& written) {
    if (written.empty() || written.rfind(kDataVariable, 0) == 0) return written;
    std::error_code ignored;
    return fs::absolute(scenario.file(written), ignored).lexically_normal().string();
  };
  for_each_path(&out, [&](const char*, std::string* written) { *written = anchor(*written); });
  for (v1::EngineKind& kind : *out.mutable_engines()->mutable_further()) {
    if (is_catalog_path(kind.node())) kind.set_node(anchor(kind.node()));
  }
  return textproto_file(out);
}

}  // namespace kvtwin
