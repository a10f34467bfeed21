#include "scenarios/app/prompt_tagger.h"

#include <chrono>

#include "engine/base/prompt_span_finder.h"

namespace kvtwin {

PromptTags tags_of(const ChatTemplate& chat, TagsWanted wanted, std::span<const uint32_t> prompt) {
  RoleTagger tagger(chat);
  tagger.append(prompt);
  PromptTags out;
  out.roles = runs_of(tagger.roles());
  out.turn = tagger.last_turn();
  if (wanted.spans) {
    PromptSpanFinder finder;
    for (const RoleRun& run : out.roles) finder.add(run.role.semantic, false, run.count);
    out.spans = finder.find();
  }
  if (!wanted.roles) out.roles.clear();
  return out;
}

PromptTags PromptTagger::tags(uint32_t session, uint32_t node) {
  using Clock = std::chrono::steady_clock;
  const std::vector<uint32_t> prompt = prompts_.prompt(session, node);
  const Clock::time_point begin = Clock::now();
  PromptTags out = tags_of(chat_, wanted_, prompt);
  cost_.ns += std::chrono::nanoseconds(Clock::now() - begin).count();
  cost_.tokens += prompt.size();
  return out;
}

}  // namespace kvtwin
