// PromptTagger finds the roles of a prompt's tokens by their ids when its request is sent, as a server does
// at admission. It reads each prompt from its start: a session's prompts may fork, shrink or come from
// several agents, and RoleTagger gives the tokens of a common prefix the same roles.

#ifndef KVTWIN_SCENARIOS_APP_PROMPT_TAGGER_H_
#define KVTWIN_SCENARIOS_APP_PROMPT_TAGGER_H_

#include <cstdint>
#include <span>

#include "scenarios/app/chat_prompts.h"
#include "traces/replay/prompt_tags.h"

namespace kvtwin {

struct TagsWanted {
  bool roles = false;  // a precision policy reads tags
  bool spans = false;  // a scorer reads what a prompt asks
};

PromptTags tags_of(const ChatTemplate& chat, TagsWanted wanted, std::span<const uint32_t> prompt);

class PromptTagger final : public PromptTagSource {
 public:
  // Both must outlive this.
  PromptTagger(const ChatTemplate& chat, const ChatPrompts* prompts, TagsWanted wanted)
      : chat_(chat), prompts_(*prompts), wanted_(wanted) {}

  PromptTags tags(uint32_t session, uint32_t node) override;

  // Of the calls of tags(). Host time; reading the ids is not part of it.
  struct Cost {
    uint64_t tokens = 0;
    int64_t ns = 0;
    double ns_per_token() const {
      return tokens == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(tokens);
    }
  };
  const Cost& cost() const { return cost_; }
  void reset_cost() { cost_ = {}; }

 private:
  const ChatTemplate& chat_;
  const ChatPrompts& prompts_;
  const TagsWanted wanted_;
  Cost cost_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_PROMPT_TAGGER_H_
