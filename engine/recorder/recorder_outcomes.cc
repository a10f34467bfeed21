#include "engine/recorder/recorder_outcomes.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/recorder/recorder_log.h"
#include "engine/recorder/recorder_records.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {
namespace {

constexpr uint32_t kOutcomeSchema = 2;
constexpr uint32_t kSchemaByRequestId = 1;  // still read; see RequestNumbers

void record_recalls(const std::vector<LayerRecall>& recalls, v1::StepOutcomes* out) {
  for (const LayerRecall& recall : recalls) {
    out->add_blocking(recall.blocking);
    out->add_background(recall.background);
    out->add_corrected(recall.corrected);
    out->add_heads(recall.heads);
    out->add_chosen(recall.chosen);
  }
}

}  // namespace

RequestNumbers::RequestNumbers(const Log& log) : from_log_(true) {
  for (const Log::ClientStep& step : log.client) {
    const auto* ready = std::get_if<RequestReady>(&step.event);
    if (ready == nullptr) continue;
    // A request that was sent again after a rejection keeps its key; outcomes belong to the last one.
    requests_.insert_or_assign(ready->key(), ready->request);
    keys_.emplace(ready->request, ready->key());
  }
}

uint64_t RequestNumbers::of(const RequestKey& key) const {
  if (!from_log_) return uint64_t{raw(key.session)} << 32 | key.index;
  const auto found = requests_.find(key);
  return found == requests_.end() ? UINT64_MAX : raw(found->second);
}

std::optional<RequestKey> RequestNumbers::key(RequestId request) const {
  const auto found = keys_.find(request);
  return found == keys_.end() ? std::nullopt : std::optional(found->second);
}

uint32_t plan_fingerprint(const LaunchStep& launch, uint32_t offset, const RequestNumbers& numbers) {
  uint64_t sum = draw({launch.entries.size()});
  for (const PlanEntry& entry : launch.entries) {
    sum = draw({sum, numbers.of(entry.key), static_cast<uint64_t>(entry.kind), entry.tokens,
                uint64_t{entry.context} + offset});
  }
  return static_cast<uint32_t>(sum);
}

void Attempts::saw(const LaunchStep& launch, uint32_t offset) {
  if (offset > 0) return;
  for (const PlanEntry& entry : launch.entries) {
    if (entry.first && !entry.swapped_in) ++attempts_[entry.request];
  }
}

void Attempts::notify(const Command& command) {
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop != nullptr && drop->reason != DropRequestState::Reason::kPreempted) attempts_.erase(drop->request);
}

uint32_t Attempts::of(RequestId request) const {
  const auto found = attempts_.find(request);
  return found == attempts_.end() ? 0 : found->second;
}

struct OutcomeLog::State {
  std::vector<std::string> engines;  // records of each
  uint64_t records = 0;
  std::vector<std::unique_ptr<OutcomeSource>> watches;
};

class OutcomeLog::Watch final : public OutcomeSource {
 public:
  Watch(OutcomeSource* source, State* state) : source_(source), state_(*state) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    source_->step(launch, offset, values);
    attempts_.saw(launch, offset);
    if (values->recalls.empty() && values->retained.empty() && values->eos.empty()) return;
    v1::OutcomeRecord record;
    v1::StepOutcomes& out = *record.mutable_step();
    out.set_engine(raw(launch.engine));
    out.set_step(raw(launch.step) + offset);
    out.set_plan(plan_fingerprint(launch, offset, {}));
    record_recalls(values->recalls, &out);
    KVT_CHECK(values->retained.size() <= launch.compressions.size());
    for (size_t i = 0; i < values->retained.size(); ++i) {
      const CompressionOutcome& retained = values->retained[i];
      v1::StepOutcomes::Retained& one = *out.add_retained();
      name(launch.entries[launch.compressions[i].entry].key, one.mutable_key());
      one.set_attempt(attempts_.of(retained.request));
      one.set_tokens(launch.compressions[i].end);
      one.mutable_count()->Add(retained.counts.begin(), retained.counts.end());
      one.mutable_live()->Add(retained.live.begin(), retained.live.end());
    }
    for (const RequestId request : values->eos) {
      const auto entry = std::find_if(launch.entries.begin(), launch.entries.end(),
                                      [&](const PlanEntry& of) { return of.request == request; });
      KVT_CHECK(entry != launch.entries.end());
      name(entry->key, out.add_ended());
    }
    append_record(record, &state_.engines.at(raw(launch.engine)));
    ++state_.records;
  }

  void notify(const Command& command) override {
    attempts_.notify(command);
    source_->notify(command);
  }

 private:
  static void name(const RequestKey& key, v1::StepOutcomes::RequestKey* out) {
    out->set_session(raw(key.session));
    out->set_index(key.index);
  }

  OutcomeSource* const source_;
  State& state_;
  Attempts attempts_;
};

OutcomeLog::OutcomeLog(uint32_t engines) : state_(std::make_unique<State>()) {
  state_->engines.resize(engines);
}
OutcomeLog::~OutcomeLog() = default;

OutcomeSource* OutcomeLog::watch(OutcomeSource* source) {
  state_->watches.push_back(std::make_unique<Watch>(source, state_.get()));
  return state_->watches.back().get();
}

bool OutcomeLog::used() const { return !state_->watches.empty(); }

std::string OutcomeLog::finish() {
  std::string bytes;
  v1::OutcomeRecord record;
  record.mutable_header()->set_schema_version(kOutcomeSchema);
  record.mutable_header()->set_kvtwin_version(KVTWIN_VERSION);
  record.mutable_header()->set_engines(static_cast<uint32_t>(state_->engines.size()));
  append_record(record, &bytes);
  for (std::string& engine : state_->engines) bytes += std::exchange(engine, {});
  record.mutable_end()->set_steps(state_->records);
  append_record(record, &bytes);
  return bytes;
}

namespace {

class OutcomeReader {
 public:
  OutcomeReader(const std::string& name, const ReadNumbers& numbers, RecordedOutcomes* out)
      : name_(name), numbers_(numbers), out_(*out) {}

  Result<void> take(const v1::OutcomeRecord& record) {
    ++records_;
    if (ended_) return problem("there are records after the end");
    if ((records_ == 1) != record.has_header()) {
      return problem(records_ == 1 ? "the first record is no header" : "there is a second header",
                     "outcomes.binpb of a run with --record is what is read here");
    }
    if (record.has_header()) return header(record.header());
    if (record.has_step()) return step(record.step());
    if (!record.has_end()) return problem("a record is empty or of a kind that this version does not know");
    ended_ = true;
    if (record.end().steps() == records_ - 2) return {};
    return problem(fmt::format("{} steps were read, but {} written", records_ - 2, record.end().steps()));
  }

  Result<void> done() {
    if (ended_) return {};
    return problem("the outcomes end early", "the run was killed, or the file was cut; run it again");
  }

 private:
  tl::unexpected<Error> problem(std::string what, std::string hint = {}) {
    return make_error(fmt::format("{}: record {}", name_, records_), std::move(what), std::move(hint));
  }

  Result<void> header(const v1::OutcomeHeader& header) {
    by_request_ = header.schema_version() == kSchemaByRequestId;
    if (!by_request_ && header.schema_version() != kOutcomeSchema) {
      return problem(fmt::format("schema version is {}", header.schema_version()),
                     fmt::format("this version reads {} and {}", kSchemaByRequestId, kOutcomeSchema));
    }
    if (by_request_) {
      Result<RequestNumbers> numbers = numbers_();
      if (!numbers) return tl::unexpected(numbers.error());
      out_.numbers = std::move(*numbers);
    }
    if (header.engines() == 0 || header.engines() > kRecordedEnginesMax) {
      return problem(fmt::format("{} engines", header.engines()), "1 to 4,096");
    }
    out_.engines.resize(header.engines());
    return {};
  }

  Result<void> step(const v1::StepOutcomes& in) {
    if (in.engine() >= out_.engines.size()) {
      return problem(fmt::format("engine {} of {}", in.engine(), out_.engines.size()));
    }
    RecordedOutcomes::Engine& engine = out_.engines[in.engine()];
    const auto layers = static_cast<uint32_t>(in.blocking_size());
    if (in.background_size() != in.blocking_size() || in.corrected_size() != in.blocking_size()) {
      return problem(fmt::format("{} layers with blocking, {} with background, {} with corrected recalls",
                                 layers, in.background_size(), in.corrected_size()));
    }
    if (layers > 0 && engine.layers > 0 && layers != engine.layers) {
      return problem(fmt::format("recalls of {} layers after recalls of {}", layers, engine.layers));
    }
    if (layers > 0) engine.layers = layers;
    RecordedOutcomes::Step one;
    one.plan = in.plan();
    for (int l = 0; l < in.blocking_size(); ++l) {
      const bool fractions = in.heads_size() == in.blocking_size() && in.chosen_size() == in.blocking_size();
      one.recalls.push_back({in.blocking(l), in.background(l), in.corrected(l), fractions ? in.heads(l) : 0,
                             fractions ? in.chosen(l) : 0});
    }
    for (const uint32_t request : in.eos()) {
      const Result<RequestKey> key = key_of(request);
      if (!key) return tl::unexpected(key.error());
      one.eos.push_back(*key);
    }
    for (const v1::StepOutcomes::RequestKey& ended : in.ended()) one.eos.push_back(key_of(ended));
    if (!engine.steps.emplace(in.step(), std::move(one)).second) {
      return problem(fmt::format("step {} of engine {} for the second time", in.step(), in.engine()));
    }
    for (const v1::StepOutcomes::Retained& retained : in.retained()) {
      if (Result<void> ok = take_retained(retained, &engine); !ok) return ok;
    }
    return {};
  }

  Result<void> take_retained(const v1::StepOutcomes::Retained& in, RecordedOutcomes::Engine* engine) {
    const auto groups = static_cast<uint32_t>(in.count_size());
    if (groups > 0 && engine->groups > 0 && groups != engine->groups) {
      return problem(fmt::format("counts of {} head groups after counts of {}", groups, engine->groups));
    }
    if (groups > 0) engine->groups = groups;
    if (static_cast<uint64_t>(in.live_size()) > uint64_t{in.tokens()} / 64 + 1) {
      return problem(fmt::format("{} words of live bits for {} tokens", in.live_size(), in.tokens()));
    }
    RecordedOutcomes::Retained retained{{in.count().begin(), in.count().end()},
                                        {in.live().begin(), in.live().end()}};
    const Result<RequestKey> key = by_request_ ? key_of(in.request()) : key_of(in.key());
    if (!key) return tl::unexpected(key.error());
    engine->retained.insert_or_assign({*key, in.attempt(), in.tokens()}, std::move(retained));
    return {};
  }

  static RequestKey key_of(const v1::StepOutcomes::RequestKey& request) {
    return {SessionId{request.session()}, request.index()};
  }
  Result<RequestKey> key_of(uint32_t request) {
    const std::optional<RequestKey> key = out_.numbers.key(RequestId{request});
    if (key) return *key;
    return problem(fmt::format("request {} is not in the log next to it", request),
                   "log.binpb and outcomes.binpb of one run belong together");
  }

  const std::string& name_;
  const ReadNumbers& numbers_;
  RecordedOutcomes& out_;
  bool by_request_ = false;
  uint64_t records_ = 0;
  bool ended_ = false;
};

}  // namespace

Result<RecordedOutcomes> read_outcomes(const std::string& name, std::string_view bytes,
                                       const ReadNumbers& numbers) {
  RecordedOutcomes out;
  OutcomeReader reader(name, numbers, &out);
  google::protobuf::LogSilencer silence;  // Error reports the problem
  RecordReader in(bytes);
  std::string_view part;
  v1::OutcomeRecord record;
  size_t begin = 0;
  while (begin = in.at(), in.next(&part)) {
    if (!record.ParseFromArray(part.data(), static_cast<int>(part.size()))) break;
    if (Result<void> ok = reader.take(record); !ok) return tl::unexpected(ok.error());
  }
  if (begin < bytes.size()) {
    return make_error(name, fmt::format("no record of outcomes at byte {}", begin),
                      "is this outcomes.binpb of a run with --record?");
  }
  if (Result<void> ok = reader.done(); !ok) return tl::unexpected(ok.error());
  return out;
}

}  // namespace kvtwin
