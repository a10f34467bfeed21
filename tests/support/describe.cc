#include "tests/support/describe.h"

#include <fmt/format.h>

namespace kvtwin::testing {
namespace {

std::string text_of(const RequestReady& e) {
  std::string text = fmt::format("arrive r{} prompt={} output={} session={}", raw(e.request), e.prompt_tokens,
                                 e.output_tokens, raw(e.session));
  for (const UnitRun& run : e.identity) text += fmt::format(" {:x}:{}+{}", run.space, run.first, run.count);
  for (const uint32_t trigger : e.triggers) text += fmt::format(" trigger={}", trigger);
  return text;
}
std::string text_of(const RequestCancelled& e) { return fmt::format("cancel r{}", raw(e.request)); }
std::string text_of(const SessionHint& e) {
  return fmt::format("{} {}", e.kind == SessionHint::Kind::kSessionEnds ? "end" : "expect", raw(e.session));
}
std::string text_of(const StepDone& e) {
  std::string text = fmt::format("done s{}", raw(e.step) + 1);
  if (e.ends.size() > 1) text += fmt::format("..s{}", raw(e.step) + e.ends.size());
  for (const RequestId request : e.eos) text += fmt::format(" eos=r{}", raw(request));
  return text;
}
std::string text_of(const TransferDone& e) { return fmt::format("arrived t{}", raw(e.transfer) + 1); }
std::string text_of(const TransferFailed& e) { return fmt::format("failed t{}", raw(e.transfer) + 1); }
std::string text_of(const PagesTaken& e) { return fmt::format("taken r{}", raw(e.request)); }
std::string text_of(const Timer& e) { return fmt::format("timer {}", raw(e.timer)); }

std::string text_of(const LaunchStep& c) {
  std::string text = fmt::format("launch s{}", raw(c.step) + 1);
  if (c.repeat > 1) text += fmt::format("..s{}", raw(c.step) + c.repeat);
  for (const PlanEntry& entry : c.entries) {
    text += fmt::format(" r{}:{}{}", raw(entry.request), entry.tokens,
                        entry.kind == EntryKind::kProbe ? "p" : "");
    if (entry.first && entry.context > 0) text += fmt::format("+{}", entry.context);
    if (!entry.query.empty()) text += fmt::format("?{}-{}", entry.query.begin, entry.query.end);
  }
  for (const Compression& cut : c.compressions) {
    text += fmt::format(" cut r{}:{}-{}:", raw(c.entries[cut.entry].request), cut.begin, cut.end);
    text += cut.keep.empty() ? "?" : fmt::format("{}", fmt::join(cut.keep, ","));
    if (c.entries[cut.entry].query.empty()) continue;
    for (const Compression::Forced& forced : cut.forced)
      text += fmt::format("!{}-{}", forced.begin, forced.end);
  }
  uint32_t stored = 0;
  for (const PlanEntry& entry : c.entries) stored += entry.stored();
  if (c.tokens_padded != stored) text += fmt::format(" pad={}", c.tokens_padded);
  return text;
}
std::string text_of(const StartTransfer& c) {
  static constexpr const char* kKinds[] = {"recall", "offload", "receive", "send", "return", "spill"};
  return fmt::format("{} t{} {}{}", kKinds[static_cast<size_t>(c.kind)], raw(c.transfer) + 1, c.source.size(),
                     c.source_tier == Tier::kDisk ? " disk" : "");
}
std::string text_of(const SetTimer&) { return "timer"; }
std::string text_of(const TokensEmitted& c) {
  return fmt::format("emitted r{}:{}", raw(c.request), c.tokens);
}
std::string text_of(const FinishRequest& c) {
  return fmt::format("{} r{}:{}", c.cancelled ? "cancelled" : "finish", raw(c.request), c.tokens);
}
std::string text_of(const RejectRequest& c) {
  static constexpr const char* kReasons[] = {"window", "pool", "empty"};
  return fmt::format("reject r{} {} {}>{}", raw(c.request), kReasons[static_cast<size_t>(c.reason)], c.needed,
                     c.limit);
}
std::string text_of(const DropRequestState& c) {
  const bool preempted = c.reason == DropRequestState::Reason::kPreempted;
  return fmt::format("{} r{}", preempted ? "preempt" : "drop", raw(c.request));
}
std::string text_of(const HandOver& c) { return fmt::format("over r{} {}", raw(c.request), c.pages.size()); }
std::string text_of(const SourceRead& c) { return fmt::format("read r{}", raw(c.request)); }
std::string text_of(const DropSessionState& c) { return fmt::format("forget {}", raw(c.session)); }

}  // namespace

std::string describe(const Event& event) {
  return std::visit([](const auto& e) { return text_of(e); }, event);
}
std::string describe(const Command& command) {
  return std::visit([](const auto& c) { return text_of(c); }, command);
}

}  // namespace kvtwin::testing
