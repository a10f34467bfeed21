#include "traces/claude_calls.h"

#include <algorithm>
#include <cstdlib>
#include <set>

namespace kvtwin::claude {

std::vector<Said> blocks_of(const std::vector<const Record*>& records) {
  std::vector<Said> said;
  for (const Record* record : records) {
    for (const Block& block : record->blocks) said.push_back({&block, record});
  }
  return said;
}

uint64_t tokens_in(const std::vector<Said>& said) {
  uint64_t sum = 0;
  for (const Said& one : said) sum += tokens_of(one.block->chars);
  return sum;
}

std::vector<uint32_t> divide(uint64_t total, const std::vector<Said>& said) {
  std::vector<uint32_t> shares(said.size(), 0);
  if (total < said.size()) {
    std::fill_n(shares.begin(), total, 1u);
    return shares;
  }
  unsigned __int128 weights = 0, so_far = 0;
  for (const Said& one : said) weights += one.block->chars + 1;
  const uint64_t spread = total - said.size();
  for (size_t i = 0; i < said.size(); ++i) {
    const uint64_t before = static_cast<uint64_t>(spread * so_far / weights);
    so_far += said[i].block->chars + 1;
    shares[i] = 1 + static_cast<uint32_t>(static_cast<uint64_t>(spread * so_far / weights) - before);
  }
  return shares;
}

std::vector<Call> calls_of(const std::vector<const Record*>& records) {
  std::vector<Call> calls;
  std::set<std::string> seen;
  std::vector<const Record*> inputs;
  bool compacted = false;
  int64_t before_ns = records.front()->at_ns;
  for (const Record* record : records) {
    if (!record->assistant) {
      if (record->compacted) inputs.clear();
      compacted = compacted || record->compacted;
      inputs.push_back(record);
    } else if (!calls.empty() && calls.back().answer.front()->message == record->message) {
      calls.back().answer.push_back(record);
    } else if (seen.insert(record->message).second) {
      calls.push_back(
          {.answer = {record}, .inputs = std::move(inputs), .compacted = compacted, .start_ns = before_ns});
      inputs.clear();
      compacted = false;
    }
    before_ns = std::max(before_ns, record->at_ns);
  }
  for (Call& call : calls) {
    for (const Record* record : call.answer) {
      call.end_ns = std::max({call.end_ns, call.start_ns, record->at_ns});
      call.prompt_tokens = std::max(call.prompt_tokens, record->prompt_tokens);
      call.output_tokens = std::max(call.output_tokens, record->output_tokens);
    }
  }
  return calls;
}

bool output_recorded(const Call& call) { return 2 * call.output_tokens >= tokens_in(blocks_of(call.answer)); }

namespace {

uint64_t reasoning_in(const Call& call) {
  const std::vector<Said> said = blocks_of(call.answer);
  const std::vector<uint32_t> shares = divide(call.output_tokens, said);
  uint64_t sum = 0;
  for (size_t i = 0; i < said.size(); ++i)
    sum += said[i].block->kind == Block::Kind::kThinking ? shares[i] : 0;
  return sum;
}

}  // namespace

bool strips_reasoning(const std::vector<Call>& calls) {
  int64_t with = 0, without = 0;
  for (size_t i = 0; i + 1 < calls.size(); ++i) {
    const Call &call = calls[i], &next = calls[i + 1];
    if (!output_recorded(call) || call.failed() || next.failed() || next.compacted) continue;
    const auto reasoning = static_cast<int64_t>(reasoning_in(call));
    const auto error = static_cast<int64_t>(next.prompt_tokens) - static_cast<int64_t>(call.prompt_tokens) -
                       static_cast<int64_t>(call.output_tokens + tokens_in(blocks_of(next.inputs)));
    with += std::abs(error);
    without += std::abs(error + reasoning);
  }
  return without < with;
}

uint64_t estimated_output(const Call& call, const Call* next) {
  const std::vector<Said> said = blocks_of(call.answer);
  const uint64_t text = tokens_in(said);
  if (next == nullptr || next->compacted || next->prompt_tokens <= call.prompt_tokens) return text;
  const uint64_t grown = next->prompt_tokens - call.prompt_tokens;
  const uint64_t others = blocks_of(next->inputs).size();
  return grown >= others + said.size() ? std::min(text, grown - others) : text;
}

}  // namespace kvtwin::claude
