#include "traces/importers/claude_requests.h"

#include <algorithm>
#include <cstdlib>
#include <set>

namespace kvtwin::claude {

std::vector<PlacedBlock> blocks_of(const std::vector<const Record*>& records) {
  std::vector<PlacedBlock> said;
  for (const Record* record : records) {
    for (const Block& block : record->blocks) said.push_back({&block, record});
  }
  return said;
}

uint64_t tokens_in(const std::vector<PlacedBlock>& said) {
  uint64_t sum = 0;
  for (const PlacedBlock& one : said) sum += tokens_of(one.block->chars);
  return sum;
}

std::vector<uint32_t> divide(uint64_t total, const std::vector<PlacedBlock>& said) {
  std::vector<uint32_t> fractions(said.size(), 0);
  if (total < said.size()) {
    std::fill_n(fractions.begin(), total, 1u);
    return fractions;
  }
  unsigned __int128 weights = 0, so_far = 0;
  for (const PlacedBlock& one : said) weights += one.block->chars + 1;
  const uint64_t spread = total - said.size();
  for (size_t i = 0; i < said.size(); ++i) {
    const uint64_t before = static_cast<uint64_t>(spread * so_far / weights);
    so_far += said[i].block->chars + 1;
    fractions[i] = 1 + static_cast<uint32_t>(static_cast<uint64_t>(spread * so_far / weights) - before);
  }
  return fractions;
}

std::vector<Request> requests_of(const std::vector<const Record*>& records) {
  std::vector<Request> requests;
  std::set<std::string> seen;
  std::vector<const Record*> inputs;
  bool compacted = false;
  int64_t before_ns = records.front()->at_ns;
  for (const Record* record : records) {
    if (!record->assistant) {
      if (record->compacted) inputs.clear();
      compacted = compacted || record->compacted;
      inputs.push_back(record);
    } else if (!requests.empty() && requests.back().answer.front()->message == record->message) {
      requests.back().answer.push_back(record);
    } else if (seen.insert(record->message).second) {
      requests.push_back(
          {.answer = {record}, .inputs = std::move(inputs), .compacted = compacted, .start_ns = before_ns});
      inputs.clear();
      compacted = false;
    }
    before_ns = std::max(before_ns, record->at_ns);
  }
  for (Request& request : requests) {
    for (const Record* record : request.answer) {
      request.end_ns = std::max({request.end_ns, request.start_ns, record->at_ns});
      request.prompt_tokens = std::max(request.prompt_tokens, record->prompt_tokens);
      request.output_tokens = std::max(request.output_tokens, record->output_tokens);
    }
  }
  return requests;
}

bool output_recorded(const Request& request) {
  return 2 * request.output_tokens >= tokens_in(blocks_of(request.answer));
}

namespace {

uint64_t reasoning_in(const Request& request) {
  const std::vector<PlacedBlock> said = blocks_of(request.answer);
  const std::vector<uint32_t> fractions = divide(request.output_tokens, said);
  uint64_t sum = 0;
  for (size_t i = 0; i < said.size(); ++i)
    sum += said[i].block->kind == Block::Kind::kThinking ? fractions[i] : 0;
  return sum;
}

}  // namespace

bool strips_reasoning(const std::vector<Request>& requests) {
  int64_t with = 0, without = 0;
  for (size_t i = 0; i + 1 < requests.size(); ++i) {
    const Request &request = requests[i], &next = requests[i + 1];
    if (!output_recorded(request) || request.failed() || next.failed() || next.compacted) continue;
    const auto reasoning = static_cast<int64_t>(reasoning_in(request));
    const auto error = static_cast<int64_t>(next.prompt_tokens) -
                       static_cast<int64_t>(request.prompt_tokens) -
                       static_cast<int64_t>(request.output_tokens + tokens_in(blocks_of(next.inputs)));
    with += std::abs(error);
    without += std::abs(error + reasoning);
  }
  return without < with;
}

uint64_t estimated_output(const Request& request, const Request* next) {
  const std::vector<PlacedBlock> said = blocks_of(request.answer);
  const uint64_t text = tokens_in(said);
  if (next == nullptr || next->compacted || next->prompt_tokens <= request.prompt_tokens) return text;
  const uint64_t grown = next->prompt_tokens - request.prompt_tokens;
  const uint64_t others = blocks_of(next->inputs).size();
  return grown >= others + said.size() ? std::min(text, grown - others) : text;
}

}  // namespace kvtwin::claude
