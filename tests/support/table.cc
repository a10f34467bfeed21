#include "tests/support/table.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "engine/base/check.h"
#include "engine/methods/registry.h"
#include "engine/scheduler/core.h"
#include "tests/support/describe.h"

namespace kvtwin::testing {
namespace {

const std::set<std::string> kCommandWords = {"launch", "preempt", "finish",  "cancelled", "emitted",
                                             "reject", "recall",  "offload", "send",      "return",
                                             "forget", "-",       "held",    "spill",     "over"};

uint32_t number(const std::string& text, size_t from = 0) {
  uint32_t value = 0;
  const auto end = std::from_chars(text.data() + from, text.data() + text.size(), value);
  KVT_CHECK(end.ec == std::errc());
  KVT_CHECK(end.ptr == text.data() + text.size());
  return value;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

// True if a line of the table, apart from its comment, has the word.
bool mentions(const std::string& table, const std::string& word) {
  for (const std::string& line : split(table, '\n')) {
    if (line.substr(0, line.find('#')).find(word) != std::string::npos) return true;
  }
  return false;
}

class Runner {
 public:
  Runner(const CoreConfig& config, PolicyAxes axes, bool tells, bool held)
      : config_(config), core_(config, std::move(axes)), on_tokens_(tells), held_(held) {}

  // Applies the event that `words` describe and returns the resulting commands in the words of the table.
  std::string happen(const std::vector<std::string>& words) {
    now_ = now_ + Duration{10};
    commands_.clear();
    const Event event = event_of(words);  // may advance now_
    core_.apply(now_, event, &commands_);
    core_.check_invariants();
    std::vector<std::string> emitted;
    for (const Command& command : commands_) {
      if (std::holds_alternative<TokensEmitted>(command) && !on_tokens_) continue;
      const auto* drop = std::get_if<DropRequestState>(&command);  // implied by finish and cancelled
      if (drop != nullptr && drop->reason != DropRequestState::Reason::kPreempted) continue;
      emitted.push_back(describe(command));
      const auto* launch = std::get_if<LaunchStep>(&command);
      if (launch == nullptr || launch->compressions.empty()) continue;
      cut_[raw(launch->step) + 1] = launch->entries[launch->compressions.front().entry].request;
    }
    if (emitted.empty()) emitted.emplace_back("-");
    if (held_) emitted.push_back(fmt::format("held {}", core_.gauges().pages_gpu_held));
    return joined(emitted);
  }

 private:
  // --- events

  Event event_of(const std::vector<std::string>& words) {
    std::map<std::string, std::string> options;
    for (size_t i = 2; i < words.size(); ++i) {
      const size_t equals = words[i].find('=');
      KVT_CHECK(equals != std::string::npos);
      options[words[i].substr(0, equals)] = words[i].substr(equals + 1);
    }
    if (options.contains("after")) now_ = now_ + Duration{int64_t{number(options["after"])} * 1'000'000'000};
    KVT_CHECK(words.size() >= 2);
    const std::string& what = words[0];
    if (what == "arrive") return arrive(words[1], options);
    if (what == "done") return done(words[1], options);
    if (what == "cancel") return RequestCancelled{RequestId{number(words[1], 1)}};
    if (what == "taken") return PagesTaken{config_.engine, RequestId{number(words[1], 1)}};
    if (what == "arrived") return TransferDone{config_.engine, TransferId{number(words[1], 1) - 1}};
    if (what == "failed") return TransferFailed{config_.engine, TransferId{number(words[1], 1) - 1}};
    if (what == "expect") {
      return SessionHint{SessionId{number(words[1])}, SessionHint::Kind::kNextRequestExpected,
                         Duration{int64_t{number(options["s"])} * 1'000'000'000},
                         options.contains("tool") ? number(options["tool"]) : 0};
    }
    KVT_CHECK(what == "end");
    return SessionHint{SessionId{number(words[1])}, SessionHint::Kind::kSessionEnds, {}};
  }

  Event arrive(const std::string& request, std::map<std::string, std::string>& options) {
    identity_.clear();
    triggers_.clear();
    for (const std::string& part : split(options["is"], ',')) {
      const uint32_t tokens = number(part, 2);
      KVT_CHECK(tokens % config_.unit_tokens == 0);
      const auto letter = static_cast<unsigned char>(part[0]);
      const uint64_t space = letter | (std::isupper(letter) != 0 ? kPrivateSpace : 0);
      identity_.push_back({space, 0, tokens / config_.unit_tokens});
    }
    for (const std::string& trigger : split(options["triggers"], ',')) triggers_.push_back(number(trigger));
    const uint32_t session = options.contains("session") ? number(options["session"]) : 0;
    RequestReady ready{RequestId{number(request, 1)}, SessionId{session}, number(options["prompt"]),
                       number(options["output"]),     identity_,          triggers_};
    ready.index = number(request, 1);
    if (options.contains("asks")) {
      const std::vector<std::string> parts = split(options["asks"], ',');
      KVT_CHECK(parts.size() == 3);
      const auto range = [](const std::string& text) {
        return TokenRange{number(text.substr(0, text.find('-'))), number(text, text.find('-') + 1)};
      };
      ready.spans = {number(parts[0]), range(parts[1]), range(parts[2])};
      KVT_CHECK(ready.spans.valid(ready.prompt_tokens));
    }
    return ready;
  }

  Event done(const std::string& steps, std::map<std::string, std::string>& options) {
    const size_t dots = steps.find("..");
    const uint32_t first = number(steps.substr(0, dots), 1);
    const uint32_t last = dots == std::string::npos ? first : number(steps, dots + 3);
    ends_.assign(last - first + 1, now_);
    eos_.clear();
    for (const std::string& request : split(options["eos"], ','))
      eos_.push_back(RequestId{number(request, 1)});
    counts_.clear();
    live_.assign(16, 0);
    for (const std::string& count : split(options["retained"], ',')) counts_.push_back(number(count));
    for (const std::string& range : split(options["live"], ',')) {
      const size_t dash = range.find('-');
      const uint32_t last_live = number(range, dash + 1);
      for (uint32_t p = number(range.substr(0, dash)); p <= last_live; ++p)
        live_[p / 64] |= uint64_t{1} << (p % 64);
    }
    retained_.clear();
    if (!options["retained"].empty() || !options["live"].empty()) {
      retained_.push_back({cut_.at(last), counts_, live_});
    }
    return StepDone{config_.engine, StepId{first - 1}, ends_, {}, eos_, retained_};
  }

  const CoreConfig config_;
  Core core_;
  const bool on_tokens_, held_;
  Instant now_{};
  std::vector<Command> commands_;
  std::vector<UnitRun> identity_;
  std::vector<uint32_t> triggers_;
  std::vector<Instant> ends_;
  std::vector<RequestId> eos_;
  std::vector<uint32_t> counts_;
  std::vector<uint64_t> live_;
  std::vector<CompressionOutcome> retained_;
  std::map<uint64_t, RequestId> cut_;  // the compressed request, by step
};

}  // namespace

void check_table(const CoreConfig& config, const std::string& table) {
  check_table(config, make_axes(config.policies), table);
}

void check_table(const CoreConfig& config, PolicyAxes axes, const std::string& table) {
  Runner runner(config, std::move(axes), mentions(table, " emitted "), mentions(table, " held "));
  std::istringstream lines(table);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream stream(line.substr(0, line.find('#')));
    std::vector<std::string> event, expected;
    for (std::string word; stream >> word;) {
      (expected.empty() && !kCommandWords.contains(word) ? event : expected).push_back(word);
    }
    if (event.empty()) continue;
    const std::string what = joined(event);
    CAPTURE(what);
    CHECK(runner.happen(event) == joined(expected));
  }
}

}  // namespace kvtwin::testing
