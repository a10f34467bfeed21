#include "engine/cpu/retrieval/recall_streams.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/prng.h"

namespace kvtwin::cpu {

kernels::HostPage host_page(const KvStore& kv, uint32_t layer, uint32_t page,
                            kernels::HostPageLayout layout) {
  const kernels::KvPages pages = kv.layer(layer);
  return {pages.keys + page * pages.page_stride, layout, pages.page_tokens, pages.kv_heads, pages.head_dim};
}

void RecallStreams::ask(RecallTask task) {
  if (task.moves.empty()) return;
  const kernels::KvPages pages = kv_->layer(task.layer);
  const uint64_t kv_entries = uint64_t{pages.page_tokens} * pages.head_dim;
  for (const RecallTask::Move& move : task.moves) {
    if (!options_.poison) break;
    std::fill_n(pages.keys + pages.at(move.to, task.head, 0), kv_entries, std::nanf(""));
    std::fill_n(pages.values + pages.at(move.to, task.head, 0), kv_entries, std::nanf(""));
  }
  streams_[asked_++ % options_.buffers].push_back({std::move(task)});
}

// Runs the next copy of one stream: its first task's, into the buffer or out of it.
void RecallStreams::advance(uint32_t stream) {
  Task& task = streams_[stream].front();
  const kernels::KvPages pages = kv_->layer(task.what.layer);
  const uint64_t numbers = uint64_t{2} * pages.page_tokens * pages.head_dim;
  std::vector<float>& staging = staging_[stream];
  if (!task.staged) {
    staging.resize(std::max<size_t>(staging.size(), task.what.moves.size() * numbers));
    for (size_t i = 0; i < task.what.moves.size(); ++i) {
      kernels::recall_head_ref(host_page(*kv_, task.what.layer, task.what.moves[i].from, options_.layout),
                               task.what.head, staging.data() + i * numbers);
    }
    task.staged = true;
    return;
  }
  for (size_t i = 0; i < task.what.moves.size(); ++i) {
    const uint32_t to = task.what.moves[i].to;
    kernels::scatter_head_ref(staging.data() + i * numbers, task.what.head, to, pages);
    if (options_.witness != nullptr) options_.witness->wrote(to, task.what.layer, task.what.head);
  }
  streams_[stream].pop_front();
}

void RecallStreams::wait(RequestId request, uint32_t layer) {
  for (uint32_t s = 0; s < 2; ++s) {
    const auto awaited = [&](const Task& task) {
      return task.what.request == request && task.what.layer == layer;
    };
    while (std::any_of(streams_[s].begin(), streams_[s].end(), awaited)) advance(s);
  }
}

void RecallStreams::discard(RequestId request) {
  for (auto& stream : streams_) {
    std::erase_if(stream, [&](const Task& task) { return task.what.request == request; });
  }
}

void RecallStreams::pass_time() {
  if (options_.delays == 0) return;
  const uint64_t bits = draw({options_.delays, ++moments_});
  for (uint64_t i = 0; i < bits % 7; ++i) {
    const auto s = static_cast<uint32_t>(draw({bits, i}) % 2);
    if (!streams_[s].empty()) advance(s);
  }
}

}  // namespace kvtwin::cpu
