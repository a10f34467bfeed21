// Runs the decision tables of this folder, *.table: the policy's behaviour as readable pages (support/table.h
// says what the words of a row mean). Beside comments (#), a file has
//
//   config NAME = BASE field=value ...   a configuration; table, host and resident are those of
//                                        support/policy_configs.h
//   rows NAME                            the indented rows that follow may begin cases
//   == TITLE                             a case, of the indented rows that follow
//   on CONFIG field=value ...            its configuration; otherwise `table`
//   after NAME                           it begins with those rows

#include <doctest/doctest.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/policy_configs.h"
#include "tests/support/source_dir.h"
#include "tests/support/table.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

uint32_t number(const std::string& text) {
  uint32_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  REQUIRE_MESSAGE((end.ec == std::errc() && end.ptr == text.data() + text.size()), text);
  return value;
}

template <typename Enum>
Enum named(const std::map<std::string, Enum>& names, const std::string& name) {
  REQUIRE_MESSAGE(names.contains(name), name);
  return names.at(name);
}

void set_field(CoreConfig* config, const std::string& field, const std::string& value) {
  const std::map<std::string, uint32_t CoreConfig::*> numbers = {
      {"chunk_tokens_max", &CoreConfig::chunk_tokens_max},
      {"context_tokens_max", &CoreConfig::context_tokens_max},
      {"evict_batch_pages", &CoreConfig::evict_batch_pages},
      {"eviction_doubling_tokens", &CoreConfig::eviction_doubling_tokens},
      {"offload_pages_target", &CoreConfig::offload_pages_target},
      {"pages_disk", &CoreConfig::pages_disk},
      {"pages_gpu", &CoreConfig::pages_gpu},
      {"pages_host", &CoreConfig::pages_host},
      {"repeat_max", &CoreConfig::repeat_max},
      {"requests_max", &CoreConfig::requests_max},
      {"spill_pages_target", &CoreConfig::spill_pages_target},
      {"step_tokens_max", &CoreConfig::step_tokens_max},
      {"steps_in_flight_max", &CoreConfig::steps_in_flight_max},
      {"unit_tokens", &CoreConfig::unit_tokens},
      {"watermark_pages", &CoreConfig::watermark_pages}};
  const std::map<std::string, std::function<void()>> others = {
      {"admission",
       [&] {
         config->admission = named<AdmissionKind>({{"full_prompt", AdmissionKind::kFullPrompt},
                                                   {"full_reservation", AdmissionKind::kFullReservation}},
                                                  value);
       }},
      {"batch_order",
       [&] {
         config->batch_order = named<BatchOrder>(
             {{"prefill_first", BatchOrder::kPrefillFirst}, {"mixed", BatchOrder::kMixed}}, value);
       }},
      {"preemption",
       [&] {
         config->preemption = named<PreemptionKind>({{"swap", PreemptionKind::kSwap}}, value);
       }},
      {"capture_sizes",
       [&] {
         std::istringstream sizes(value);
         for (std::string size; std::getline(sizes, size, ',');)
           config->capture_sizes.push_back(number(size));
       }},
      {"identity", [&] { config->policies.identity = value; }},
      {"placement", [&] { config->policies.placement = value; }},
      {"plain", [&] { config->policies = {}; }},
      {"prefill_only", [&] { config->prefill_only = number(value) != 0; }},
      {"prefix_cache", [&] { config->prefix_cache = number(value) != 0; }},
      {"prefix_eviction", [&] { config->prefix_eviction = value; }}};
  if (numbers.contains(field)) {
    config->*numbers.at(field) = number(value);
    return;
  }
  REQUIRE_MESSAGE(others.contains(field), field);
  others.at(field)();
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
      *rows_ += line + "\n";
    } else if (word == "config") {
      std::string equals, base;
      words >> equals >> base;
      configs_[name] = config_of(base, &words);
    } else if (word == "rows") {
      finish();
      rows_ = &starts_[name];
    } else if (word == "==") {
      finish();
      title_ = line.substr(3);
      rows_ = &table_;
    } else if (word == "on") {
      config_ = config_of(name, &words);
    } else {
      REQUIRE_MESSAGE((word == "after" && starts_.contains(name)), line);
      table_ = starts_.at(name);
    }
  }

  CoreConfig config_of(const std::string& base, std::istringstream* words) const {
    REQUIRE_MESSAGE(configs_.contains(base), base);
    CoreConfig config = configs_.at(base);
    for (std::string word; *words >> word;) {
      const size_t equals = word.find('=');
      REQUIRE_MESSAGE(equals != std::string::npos, word);
      set_field(&config, word.substr(0, equals), word.substr(equals + 1));
    }
    return config;
  }

  // Runs the case that ends here.
  void finish() {
    if (!title_.empty()) {
      CAPTURE(title_);
      check_table(config_, table_);
      ++cases_;
    }
    title_.clear(), table_.clear();
    config_ = table_config();
  }

  std::map<std::string, CoreConfig> configs_ = {
      {"table", table_config()}, {"host", host_config()}, {"resident", resident_config()}};
  std::map<std::string, std::string> starts_;
  CoreConfig config_ = table_config();
  std::string title_, table_;
  std::string* rows_ = &table_;
  size_t cases_ = 0;
};

}  // namespace

TEST_CASE("policy: every decision table") {
  size_t files = 0, cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/tests/unit/policy_tables")) {
    if (entry.path().extension() != ".table") continue;
    const std::string name = entry.path().filename();
    CAPTURE(name);
    cases += TableFile(entry.path()).cases();
    ++files;
  }
  CHECK(files >= 11);
  CHECK(cases >= 82);
}
