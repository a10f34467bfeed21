#include "traces/logs/request_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include "engine/base/plural.h"
#include "engine/base/prng.h"
#include "traces/importers/importers.h"
#include "traces/logs/log_session.h"

namespace kvtwin {
namespace {

constexpr int64_t kUnixTimesFrom = 100'000'000'000'000'000;  // 1973, ns: smaller times have another origin
constexpr int64_t kSpanOfTimesMax = int64_t{1} << 60;
constexpr uint64_t kTokensMax = uint64_t{1} << 30;
constexpr uint32_t kCharsPerToken = 4;

uint64_t estimated_tokens(uint64_t chars) {
  return std::max<uint64_t>(1, (chars + kCharsPerToken - 1) / kCharsPerToken);
}

class LogImport {
 public:
  LogImport(RequestLog log, const std::string& path, const ImportOptions& options, TraceSink* sink)
      : log_(std::move(log)), path_(path), options_(options), sink_(sink) {}

  Result<void> run() {
    drop_failed();
    if (log_.requests.empty()) return make_error(path_, "holds no finished request", "a log with requests");
    if (auto good = check_times(); !good) return good;
    for (const LoggedRequest& request : log_.requests) {
      if (auto good = fill(request); !good) return good;
    }
    group();
    estimate_ends();
    std::vector<v1::Session> sessions;
    PrefixTokens prefixes;
    // In order of arrival, so that a message has the tokens of its first appearance.
    std::stable_sort(groups_.begin(), groups_.end(), [this](const Group& a, const Group& b) {
      return requests_[a.members.front()].start_ns < requests_[b.members.front()].start_ns;
    });
    for (const Group& one : groups_) {
      std::vector<TimedRequest> members;
      for (const size_t index : one.members) members.push_back(requests_[index]);
      for (v1::Session& session : log_sessions(one.id, members, timed_, &prefixes))
        sessions.push_back(std::move(session));
    }
    std::stable_sort(sessions.begin(), sessions.end(), [](const v1::Session& a, const v1::Session& b) {
      return a.arrival_at_ns() < b.arrival_at_ns();
    });
    add_notes(sessions.size());
    if (auto good = sink_->header(header()); !good) return good;
    for (const v1::Session& session : sessions) {
      if (auto good = sink_->session(session); !good) return good;
    }
    return sink_->done();
  }

 private:
  struct Group {
    std::string id;
    std::vector<size_t> members;  // in order of starts
  };

  void drop_failed() {
    const size_t all = log_.requests.size();
    std::erase_if(log_.requests, [](const LoggedRequest& request) { return request.failed; });
    if (const size_t failed = all - log_.requests.size(); failed > 0)
      note(options_,
           fmt::format("{} of {} requests failed and {} left out", failed, all, failed == 1 ? "is" : "are"));
  }

  Result<void> check_times() {
    const auto has_start = [](const LoggedRequest& request) { return request.start_ns.has_value(); };
    timed_ = std::any_of(log_.requests.begin(), log_.requests.end(), has_start);
    if (!timed_) return {};
    int64_t last = INT64_MIN;
    origin_ = INT64_MAX;
    for (const LoggedRequest& request : log_.requests) {
      if (!request.start_ns)
        return make_error(request.where, "has no start time", "one for each request, or for none");
      if (request.end_ns && *request.end_ns < *request.start_ns)
        return make_error(request.where,
                          fmt::format("ends {} ns before it starts", *request.start_ns - *request.end_ns));
      origin_ = std::min(origin_, *request.start_ns);
      last = std::max(last, request.end_ns.value_or(*request.start_ns));
    }
    if (last - origin_ > kSpanOfTimesMax)
      return make_error(path_, "its times span more than 36 years", "times of one clock in one unit");
    std::stable_sort(
        log_.requests.begin(), log_.requests.end(),
        [](const LoggedRequest& a, const LoggedRequest& b) { return *a.start_ns < *b.start_ns; });
    return {};
  }

  Result<void> fill(const LoggedRequest& source) {
    if (!source.unread_time.empty())
      return make_error(source.where, fmt::format("starts at {}, which is no time", source.unread_time),
                        "ISO 8601, or Unix time in s, ms, us or ns");
    TimedRequest request;
    request.source = &source;
    request.prompt_estimated = !source.prompt_tokens;
    request.output_estimated = !source.output_tokens;
    const bool no_prompt = request.prompt_estimated && source.prompt.empty();
    if (no_prompt || (request.output_estimated && !source.output)) {
      return make_error(
          source.where,
          fmt::format("has no {} tokens and no text to estimate them from", no_prompt ? "prompt" : "output"),
          log_.tokens_hint);
    }
    uint64_t prompt = 0;
    if (source.prompt_tokens) {
      prompt = *source.prompt_tokens;
    } else {
      for (const LoggedText& text : source.prompt) prompt += estimated_tokens(text.chars);
    }
    const uint64_t output =
        source.output_tokens ? *source.output_tokens : estimated_tokens(source.output->chars);
    if (prompt == 0 || prompt > kTokensMax || output > kTokensMax)
      return make_error(source.where, fmt::format("has {} prompt and {} output tokens", prompt, output),
                        "at least one prompt token, at most 2^30 of each");
    request.prompt_tokens = static_cast<uint32_t>(prompt);
    request.output_tokens = static_cast<uint32_t>(output);
    request.start_ns = timed_ ? *source.start_ns - origin_ : 0;
    request.end_ns = timed_ && source.end_ns ? *source.end_ns - origin_ : -1;
    const auto [model, added] = models_.emplace(source.model, models_.size());
    request.model = model->second;
    if (added) names_.push_back(source.model);
    requests_.push_back(request);
    return {};
  }

  // The session of a request without a name is the one whose last prompt its messages extend.
  void group() {
    std::map<std::string, size_t> by_name;
    std::map<TextHash, size_t> by_prompt;  // all messages of the latest request -> its group
    for (size_t i = 0; i < requests_.size(); ++i) {
      const LoggedRequest& source = *requests_[i].source;
      size_t found = groups_.size();
      if (!source.session.empty()) {
        found = by_name.emplace(source.session, found).first->second;
        ++named_;
      } else if (!source.prompt.empty()) {
        TextHash hash;
        for (const LoggedText& text : source.prompt) {
          hash = chain_text(hash, text.hash);
          const auto earlier = by_prompt.find(hash);
          if (earlier != by_prompt.end() && &text != &source.prompt.back()) found = earlier->second;
        }
        by_prompt[hash] = found;
      }
      if (found == groups_.size())
        groups_.push_back({source.session.empty() ? fmt::format("{}", i + 1) : source.session, {}});
      groups_[found].members.push_back(i);
    }
  }

  // A request without an end takes the estimated time, and ends before the next one of its session begins.
  void estimate_ends() {
    for (const Group& one : groups_) {
      int64_t clock = 0;
      for (size_t k = 0; k < one.members.size(); ++k) {
        TimedRequest& request = requests_[one.members[k]];
        if (!timed_) request.start_ns = clock;
        if (request.end_ns >= 0) continue;
        int64_t service = estimated_service_ns(request.prompt_tokens, request.output_tokens);
        if (timed_ && k + 1 < one.members.size())
          service = std::min(service, requests_[one.members[k + 1]].start_ns - request.start_ns);
        request.end_ns = request.start_ns + service;
        request.end_estimated = true;
        clock = request.end_ns;
      }
    }
  }

  v1::TraceHeader header() const {
    v1::TraceHeader header = imported_header(log_.format, path_);
    header.mutable_source()->set_url(log_.url);
    const bool chains = groups_.size() < requests_.size();
    header.set_session_arrivals(timed_ ? v1::ARR_OPEN_LOOP : v1::ARR_NONE);
    header.set_request_arrivals(!timed_ ? v1::ARR_NONE : chains ? v1::ARR_CLOSED_LOOP : v1::ARR_OPEN_LOOP);
    if (timed_ && origin_ >= kUnixTimesFrom) header.set_origin_unix_ns(static_cast<uint64_t>(origin_));
    header.set_time_resolution_ns(log_.time_resolution_ns);
    for (const std::string& name : names_) header.add_models(name);
    add_recipe(&header, "weka-service-fit", R"({"base_s":1.26,"output_per_s":67.4,"s_per_100k_prompt":1.56})",
               0, "weka-claude-code");
    add_recipe(&header, "chars-per-token", fmt::format(R"({{"chars":{}}})", kCharsPerToken), 0, "");
    add_recipe(&header, "append-only-history", R"({"parent":"longest earlier prompt that fits"})", 0, "");
    for (const char* const field : {"LlmRequest.prompt_tokens", "LlmRequest.output_tokens"})
      add_policy(&header, field, v1::RECORDED);
    const v1::Prov times = timed_ ? v1::RECORDED : v1::UNKNOWN;
    for (const char* const field :
         {"Session.arrival_at_ns", "LlmRequest.recorded_at_ns", "LlmRequest.recorded_service_ns"})
      add_policy(&header, field, times);
    add_policy(&header, "LlmRequest.think_ns", timed_ ? v1::DERIVED : v1::UNKNOWN);
    add_policy(&header, "Span.content_hash", v1::DERIVED);
    if (texts() == 0 && chains) add_policy(&header, "LlmRequest.prompt", v1::ESTIMATED, 3);
    return header;
  }

  size_t texts() const {
    return static_cast<size_t>(std::count_if(requests_.begin(), requests_.end(), [](const TimedRequest& one) {
      return !one.source->prompt.empty();
    }));
  }

  void add_notes(size_t sessions) const {
    const size_t count = requests_.size(), with_text = texts();
    const std::string split =
        sessions == groups_.size()
            ? ""
            : fmt::format("; {} of them overlap and are sessions of their own", sessions - groups_.size());
    if (named_ > 0)
      note(options_,
           fmt::format("sessions: by {}{}{}", log_.session_field,
                       named_ == count ? "" : fmt::format(" ({} of {} requests)", named_, count), split));
    else if (with_text > 0)
      note(options_, fmt::format("sessions: the log names none; requests whose messages extend an earlier "
                                 "request's are one session{}",
                                 split));
    else
      note(options_, "sessions: the log names none and has no text; each request is a session of its own");
    if (with_text > 0)
      note(options_, fmt::format("prefix reuse: from the text of {} of {} requests; the text is not stored",
                                 with_text, count));
    else if (groups_.size() < count)
      note(options_,
           "prefix reuse: estimated, a prompt that is not shorter continues its session's last one");
    else
      note(options_, "prefix reuse: none, the log has lengths alone");
    note_estimates(count);
  }

  void note_estimates(size_t count) const {
    const auto estimated = std::count_if(requests_.begin(), requests_.end(), [](const TimedRequest& one) {
      return one.prompt_estimated || one.output_estimated;
    });
    if (estimated > 0)
      note(options_, fmt::format("lengths: of {} of {} requests estimated at {} characters a token; {}",
                                 estimated, count, kCharsPerToken, log_.tokens_hint));
    const auto open = std::count_if(requests_.begin(), requests_.end(),
                                    [](const TimedRequest& one) { return one.end_estimated; });
    if (!timed_)
      note(options_, "times: the file has none; set replay.arrivals to draw them");
    else if (open > 0)
      note(options_, fmt::format("times: the ends of {} of {} requests are estimated", open, count));
  }

  RequestLog log_;
  const std::string& path_;
  const ImportOptions& options_;
  TraceSink* const sink_;
  bool timed_ = false;
  int64_t origin_ = 0;
  size_t named_ = 0;
  std::map<std::string, uint32_t> models_;
  std::vector<std::string> names_;
  std::vector<TimedRequest> requests_;
  std::vector<Group> groups_;
};

}  // namespace

TextHash hash_text(std::string_view text) {
  TextHash hash{0x6b7674776c6f6773, text.size()};
  for (size_t at = 0; at < text.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min<size_t>(8, text.size() - at));
    hash.low = draw({hash.low, word, 0});
    hash.high = draw({hash.high, word, 1});
  }
  return hash;
}

TextHash chain_text(const TextHash& before, const TextHash& text) {
  return {draw({before.low, before.high, text.low, text.high, 0}),
          draw({before.low, before.high, text.low, text.high, 1})};
}

Result<void> write_request_log(RequestLog log, const std::string& path, const ImportOptions& options,
                               TraceSink* sink) {
  return LogImport(std::move(log), path, options, sink).run();
}

}  // namespace kvtwin
