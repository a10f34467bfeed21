#include "tests/support/table_file.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include "tests/support/policy_configs.h"
#include "tests/support/source_dir.h"
#include "tests/support/table.h"
#include "tests/support/test_policies.h"

namespace kvtwin::testing {
namespace {

struct TableSetting {
  CoreConfig config;
  std::optional<CompressionTrigger> trigger{};
  ProbePasses passes{};
};

std::vector<std::string> parts_of(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

uint32_t number(const std::string& text) {
  uint32_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  REQUIRE_MESSAGE((end.ec == std::errc() && end.ptr == text.data() + text.size()), text);
  return value;
}

Fraction fraction(const std::string& text) {
  const std::vector<std::string> parts = parts_of(text, '/');
  return kWhole * number(parts.at(0)) / number(parts.at(1));
}

// A value of the enumeration by its name; false if the name is another's.
template <typename Enum>
Enum named(std::initializer_list<std::pair<const char*, Enum>> names, const std::string& name) {
  for (const auto& [known, value] : names) {
    if (name == known) return value;
  }
  FAIL("unknown: " << name);
  return {};
}

// `tokens` at a time from position 2 on, each part after an instruction of two.
ProbePasses repeats(uint32_t tokens) {
  ScorerSpec spec;
  spec.repeat_tokens = tokens, spec.repeat_tail = 0, spec.repeat_instruction = 2;
  return ProbePasses::of_repeats(spec, 2);
}

uint32_t* number_field(CoreConfig* config, const std::string& field) {
  BudgetSpec& budget = config->policies.budget_spec;
  const std::map<std::string, uint32_t*> fields = {
      {"chunk_tokens", &budget.chunk_tokens},
      {"chunk_tokens_max", &config->chunk_tokens_max},
      {"context_tokens_max", &config->context_tokens_max},
      {"decode_reserve", &budget.decode_reserve},
      {"evict_batch_pages", &config->evict_batch_pages},
      {"eviction_doubling_tokens", &config->eviction_doubling_tokens},
      {"interval", &budget.interval},
      {"kv_entries", &budget.kv_entries},
      {"offload_pages_target", &config->offload_pages_target},
      {"pages_disk", &config->pages_disk},
      {"pages_gpu", &config->pages_gpu},
      {"pages_host", &config->pages_host},
      {"repeat_max", &config->repeat_max},
      {"requests_max", &config->requests_max},
      {"sinks", &budget.sinks},
      {"spill_pages_target", &config->spill_pages_target},
      {"step_tokens_max", &config->step_tokens_max},
      {"steps_in_flight_max", &config->steps_in_flight_max},
      {"unit_tokens", &config->unit_tokens},
      {"watermark_pages", &config->watermark_pages},
      {"window", &budget.window}};
  return fields.contains(field) ? fields.at(field) : nullptr;
}

std::string* name_field(CoreConfig* config, const std::string& field) {
  PolicySet& set = config->policies;
  const std::map<std::string, std::string*> fields = {
      {"budget", &set.budget}, {"identity", &set.identity},
      {"layout", &set.layout}, {"placement", &set.placement},
      {"scorer", &set.scorer}, {"prefix_eviction", &config->prefix_eviction},
      {"precision", &set.precision}};
  return fields.contains(field) ? fields.at(field) : nullptr;
}

bool* flag_field(CoreConfig* config, const std::string& field) {
  BudgetSpec& budget = config->policies.budget_spec;
  const std::map<std::string, bool*> fields = {{"prefill_only", &config->prefill_only},
                                               {"prefix_cache", &config->prefix_cache},
                                               {"sinks_free", &budget.sinks_free},
                                               {"uniform_depth", &budget.uniform_depth}};
  return fields.contains(field) ? fields.at(field) : nullptr;
}

void set_other(TableSetting* setting, const std::string& field, const std::string& value) {
  CoreConfig& config = setting->config;
  BudgetSpec& budget = config.policies.budget_spec;
  if (field == "admission") {
    config.admission = named<AdmissionKind>(
        {{"full_prompt", AdmissionKind::kFullPrompt}, {"full_reservation", AdmissionKind::kFullReservation}},
        value);
  } else if (field == "batch_order") {
    config.batch_order = named<BatchOrder>(
        {{"prefill_first", BatchOrder::kPrefillFirst}, {"mixed", BatchOrder::kMixed}}, value);
  } else if (field == "preemption") {
    config.preemption = named<PreemptionKind>({{"swap", PreemptionKind::kSwap}}, value);
  } else if (field == "trigger") {
    setting->trigger = named<CompressionTrigger>({{"chunk_end", CompressionTrigger::kChunkEnd},
                                                  {"prompt_end", CompressionTrigger::kPromptEnd},
                                                  {"decode_step", CompressionTrigger::kDecodeStep},
                                                  {"turn_start", CompressionTrigger::kTurnStart},
                                                  {"at_no_time", CompressionTrigger::kAtNoTime}},
                                                 value);
  } else if (field == "soft" || field == "repeats") {
    setting->trigger = CompressionTrigger::kPromptEnd;
    setting->passes = field == "soft" ? ProbePasses::of_soft_tokens(number(value)) : repeats(number(value));
  } else if (field == "capture_sizes") {
    for (const std::string& size : parts_of(value, ',')) config.capture_sizes.push_back(number(size));
  } else if (field == "mu") {
    for (const std::string& one : parts_of(value, ',')) budget.mu.push_back(fraction(one));
    budget.sigma.assign(budget.mu.size(), 0);
  } else if (field == "ratio") {
    budget.ratio = fraction(value);
  } else if (field == "heads") {
    config.policies.layout_spec = {.layers = 1, .kv_heads = number(value), .heads_per_group = 1};
  } else if (field == "page_tokens") {
    config.page_tokens = config.unit_tokens = number(value);
  } else if (field == "refill_s") {
    config.eviction_refill = Duration{int64_t{number(value)} * 1'000'000'000};
  } else if (field == "plain") {
    config.policies = {};
  } else {
    FAIL("there is no field " << field);
  }
}

void set_field(TableSetting* setting, const std::string& field, const std::string& value) {
  if (uint32_t* const count = number_field(&setting->config, field)) {
    *count = number(value);
  } else if (std::string* const name = name_field(&setting->config, field)) {
    *name = value;
  } else if (bool* const flag = flag_field(&setting->config, field)) {
    *flag = number(value) != 0;
  } else {
    set_other(setting, field, value);
  }
}

std::string pauses(uint32_t first, uint32_t times, uint32_t tool, uint32_t seconds) {
  std::string rows;
  for (uint32_t n = first; n < first + times; ++n) {
    rows += fmt::format(
        "expect 9 s=1 tool={} -\n"
        "arrive r{} prompt=16 output=1 session=9 after={} launch s{} r{}:16\n"
        "done s{} finish r{}:1\n",
        tool, n, seconds, n, n, n, n);
  }
  return rows;
}

class TableFile {
 public:
  explicit TableFile(const std::filesystem::path& path) {
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) take(line);
    finish();
  }
  size_t cases() const { return cases_; }

 private:
  void take(const std::string& line) {
    std::istringstream words(line);
    std::string word, name;
    words >> word >> name;
    if (line.empty() || line[0] == '#') return;
    if (line[0] == ' ') {
      uint32_t times = 0, tool = 0, seconds = 0;
      if (word == "pauses") words >> times >> tool >> seconds;
      *rows_ += word == "pauses" ? pauses(number(name), times, tool, seconds) : line + "\n";
    } else if (word == "config") {
      std::string equals, base;
      words >> equals >> base;
      settings_[name] = setting_of(base, &words);
    } else if (word == "rows") {
      finish();
      rows_ = &starts_[name];
    } else if (word == "==") {
      finish();
      title_ = line.substr(3);
      rows_ = &table_;
    } else if (word == "on") {
      setting_ = setting_of(name, &words);
    } else {
      REQUIRE_MESSAGE((word == "after" && starts_.contains(name)), line);
      table_ = starts_.at(name);
    }
  }

  TableSetting setting_of(const std::string& base, std::istringstream* words) const {
    REQUIRE_MESSAGE(settings_.contains(base), base);
    TableSetting setting = settings_.at(base);
    for (std::string word; *words >> word;) {
      const size_t equals = word.find('=');
      REQUIRE_MESSAGE(equals != std::string::npos, word);
      set_field(&setting, word.substr(0, equals), word.substr(equals + 1));
    }
    return setting;
  }

  // Runs the case that ends here.
  void finish() {
    if (!title_.empty()) {
      CAPTURE(title_);
      const CoreConfig& config = setting_.config;
      if (setting_.trigger) {
        check_table(config, axes_with_scorer(config, *setting_.trigger, setting_.passes), table_);
      } else {
        check_table(config, table_);
      }
      ++cases_;
    }
    title_.clear(), table_.clear();
    setting_ = {table_config()};
  }

  std::map<std::string, TableSetting> settings_ = {
      {"table", {table_config()}}, {"host", {host_config()}}, {"resident", {resident_config()}}};
  std::map<std::string, std::string> starts_;
  TableSetting setting_{table_config()};
  std::string title_, table_;
  std::string* rows_ = &table_;
  size_t cases_ = 0;
};

}  // namespace

size_t check_table_files(const std::string& folder) {
  size_t cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/" + folder)) {
    if (entry.path().extension() != ".table") continue;
    const std::string name = entry.path().filename();
    CAPTURE(name);
    cases += TableFile(entry.path()).cases();
  }
  return cases;
}

}  // namespace kvtwin::testing
