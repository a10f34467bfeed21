#include "engine/cuda/retrieval/retrieval_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {
namespace {

// Zeros are valid block numbers, should a list be read before it is written.
Result<void> take(uint64_t bytes, const char* what, Buffer* to) {
  Result<Buffer> made = Buffer::make(Buffer::Kind::kDevice, bytes, what, "of requests that choose pages");
  if (!made) return tl::unexpected<Error>(made.error());
  *to = std::move(*made);
  return check(cudaMemset(to->as<void>(), 0, bytes), "cudaMemset", what, bytes);
}

}  // namespace

Result<RetrievalMemory> RetrievalMemory::make(const LlmSpec& llm, const ChoiceShape& shape,
                                              const Size& size) {
  RetrievalMemory out;
  out.shape_ = shape;
  out.size_ = size;
  const uint64_t counts = uint64_t{size.layers + 1} * sizeof(ChoiceCounts);
  const struct {
    Buffer* buffer;
    Buffer::Kind kind;
    uint64_t bytes;
    const char* what;
  } rows[] = {{&out.summaries_, Buffer::Kind::kDevice, out.summaries_of_layer_bytes() * size.layers,
               "summaries of pages"},
              {&out.counts_, Buffer::Kind::kDevice, counts, "counts of choices"},
              {&out.counts_host_, Buffer::Kind::kPinned, counts, "counts of choices"}};
  for (const auto& row : rows) {
    Result<Buffer> made =
        Buffer::make(row.kind, row.bytes, row.what,
                     fmt::format("{} pages, {} layers of {}", size.owners, size.layers, llm.layers));
    if (!made) return tl::unexpected<Error>(made.error());
    *row.buffer = std::move(*made);
  }
  if (Result<void> ok =
          check(cudaMemset(out.counts_.as<void>(), 0, counts), "cudaMemset", "counts of choices", counts);
      !ok)
    return tl::unexpected<Error>(ok.error());
  // Requests that are preempted keep what they hold.
  if (Result<void> ok = out.take_states(2 * size.requests); !ok) return tl::unexpected<Error>(ok.error());
  if (Result<void> ok = out.take_rows(size.requests, size.candidates); !ok)
    return tl::unexpected<Error>(ok.error());
  return out;
}

__nv_bfloat16* RetrievalMemory::summaries(uint32_t layer) const {
  return summaries_.as<__nv_bfloat16>(layer * summaries_of_layer_bytes());
}

__nv_bfloat16* RetrievalMemory::q_before(uint32_t layer) const {
  return q_before_.as<__nv_bfloat16>(uint64_t{layer} * states_ * query_numbers() * sizeof(__nv_bfloat16));
}

void RetrievalMemory::reserve_states(uint32_t states) {
  if (states <= states_) return;
  if (Result<void> ok = take_states(std::max({states, 2 * states_, 16u})); !ok) fail(ok.error().text());
}

// Layers are rows of both buffers; the new one is wider.
Result<void> RetrievalMemory::take_states(uint32_t states) {
  if (!size_.slots || states == 0) return {};
  must(cudaDeviceSynchronize(), "wait for requests that choose pages");
  for (const auto& [buffer, each] : {std::pair{&held_, head_lists() * sizeof(uint32_t)},
                                     std::pair{&q_before_, query_numbers() * sizeof(__nv_bfloat16)}}) {
    Buffer made;
    if (Result<void> ok = take(each * states * size_.layers, "what requests hold", &made); !ok) return ok;
    if (states_ > 0) {
      must(cudaMemcpy2D(made.as<char>(), each * states, buffer->as<char>(), each * states_, each * states_,
                        size_.layers, cudaMemcpyDeviceToDevice),
           "copy of what requests hold", each * states);
    }
    *buffer = std::move(made);
  }
  must(cudaDeviceSynchronize(), "copy of what requests hold");
  states_ = states;
  ++place_;
  return {};
}

void RetrievalMemory::reserve_rows(uint32_t rows, uint32_t candidates) {
  if (rows <= rows_ && candidates <= shape_.score_stride) return;
  if (Result<void> ok = take_rows(rows, candidates + candidates / 4); !ok) fail(ok.error().text());
}

Result<void> RetrievalMemory::take_rows(uint32_t rows, uint32_t candidates) {
  if (rows == 0) return {};
  ++place_;
  rows_ = std::max(rows, rows_);
  shape_.score_stride = std::max(shape_.score_stride, (candidates + 3) / 4 * 4);
  must(cudaDeviceSynchronize(), "wait for requests that choose pages");
  const uint64_t moves = rows_ * head_lists() * sizeof(RecallMove);
  const uint64_t scores =
      uint64_t{rows_} * shape_.kv_heads * shape_.score_rows() * shape_.score_stride * sizeof(float);
  const struct {
    Buffer* buffer;
    uint64_t bytes;
    const char* what;
    bool needed;
  } all[] = {{&scores_, scores, "scores of pages", true},
             {&scores_next_, scores, "scores of pages for the next step", size_.ahead},
             {&now_, uint64_t{rows_} * shape_.kv_heads * size_.layers, "heads that choose", size_.ahead},
             {&before_, moves, "moves before attention", size_.slots},
             {&after_, moves * size_.layers, "moves after attention", size_.ahead},
             {&spare_tables_, rows_ * head_lists() * sizeof(uint32_t), "tables", size_.slots}};
  for (const auto& one : all) {
    if (!one.needed) continue;
    *one.buffer = Buffer();  // frees before it allocates
    if (Result<void> ok = take(one.bytes, one.what, one.buffer); !ok) return ok;
  }
  return {};
}

void RetrievalMemory::fetch_counts(cudaStream_t stream) const {
  must(cudaMemcpyAsync(counts_host_.as<void>(), counts_.as<void>(), counts_.bytes(), cudaMemcpyDeviceToHost,
                       stream),
       "copy of counts of choices", counts_.bytes());
}

ChoiceArgs RetrievalMemory::args(uint32_t layer, ChoosesFor step) const {
  ChoiceArgs args;
  args.summaries = summaries(layer);
  args.scores = (step == ChoosesFor::kNextStep ? scores_next_ : scores_).as<float>();
  args.counts = counts(layer);
  args.step = step;
  if (!size_.slots) return args;
  args.q_before = q_before(layer);
  args.held = held_.as<uint32_t>(uint64_t{layer} * states_ * head_lists() * sizeof(uint32_t));
  args.before = before_.as<RecallMove>();
  if (!size_.ahead) return args;
  args.after = after_.as<RecallMove>(uint64_t{layer} * rows_ * head_lists() * sizeof(RecallMove));
  args.now = now_.as<uint8_t>(uint64_t{layer} * rows_ * shape_.kv_heads);
  return args;
}

ChoiceArgs RetrievalMemory::spare_args(uint32_t layer) const {
  ChoiceArgs out = args(layer, ChoosesFor::kThisStep);
  out.counts = counts(size_.layers);
  out.now = nullptr;
  return out;
}

}  // namespace kvtwin::cuda
