#include "engine/cuda/retrieval/copied_recall.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {
namespace {

constexpr uint64_t kHeader = 16;  // bytes before a fetched list: its counts
static_assert(sizeof(ChoiceCounts) <= kHeader);

}  // namespace

Result<std::unique_ptr<CopiedRecall>> CopiedRecall::make(const RecallCopies& copies, const Size& size) {
  KVT_CHECK(copies.copy != HostCopy::kKernel);
  std::unique_ptr<CopiedRecall> out(new CopiedRecall(copies, size));
  for (uint32_t i = 0; i < (size.ahead ? 2u : 1u); ++i) {
    Task& task = out->tasks_[i];
    for (cudaEvent_t* const event : {&task.begun, &task.ended}) {
      if (Result<void> ok =
              check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate", "");
          !ok)
        return tl::unexpected<Error>(ok.error());
    }
    if (Result<void> ok =
            check(cudaStreamCreateWithFlags(&task.second, cudaStreamNonBlocking), "cudaStreamCreate", "");
        !ok)
      return tl::unexpected<Error>(ok.error());
    if (Result<void> ok = out->allocate(&task, i == 0 ? 1 : size.layers); !ok)
      return tl::unexpected<Error>(ok.error());
  }
  return out;
}

CopiedRecall::~CopiedRecall() {
  for (const Task& task : tasks_) {
    if (task.second == nullptr) continue;
    cudaStreamSynchronize(task.second);
    cudaStreamDestroy(task.second);
    cudaEventDestroy(task.begun), cudaEventDestroy(task.ended);
  }
}

Result<void> CopiedRecall::allocate(Task* task, uint32_t layers) {
  const uint64_t staging =
      streamed() ? 2 * size_.chosen * size_.host.head_numbers() * sizeof(__nv_bfloat16) : 0;
  const uint64_t moves = uint64_t{moves_max()} * sizeof(RecallMove);
  const struct {
    Buffer* buffer;
    Buffer::Kind kind;
    uint64_t bytes;
    const char* what;
  } all[] = {{&task->staging, Buffer::Kind::kDevice, staging, "pages on their way from the host"},
             {&task->fetched, Buffer::Kind::kPinned, kHeader + moves, "lists of pages to recall"},
             {&task->moves, Buffer::Kind::kPinned, layers * moves, "lists of copies"}};
  for (const auto& one : all) {
    if (one.bytes == 0 || one.bytes <= one.buffer->bytes()) continue;
    Result<Buffer> made = Buffer::make(one.kind, one.bytes, one.what, fmt::format("{} rows", size_.rows));
    if (!made) return tl::unexpected<Error>(made.error());
    *one.buffer = std::move(*made);
  }
  return {};
}

void CopiedRecall::reserve(uint32_t rows) {
  if (rows <= size_.rows) return;
  must(cudaDeviceSynchronize(), "wait for recalls");
  size_.rows = rows;
  for (uint32_t i = 0; i < (size_.ahead ? 2u : 1u); ++i) {
    if (Result<void> ok = allocate(&tasks_[i], i == 0 ? 1 : size_.layers); !ok) fail(ok.error().text());
  }
}

void CopiedRecall::fetch(const ChoiceArgs& args, uint32_t rows, cudaStream_t stream) {
  const Buffer& to = task(args.step).fetched;
  const RecallMove* const moves = args.step == ChoosesFor::kNextStep ? args.after : args.before;
  const uint64_t bytes = uint64_t{rows} * size_.host.kv_heads * size_.chosen * sizeof *moves;
  must(cudaMemcpyAsync(to.as<void>(), args.counts, sizeof *args.counts, cudaMemcpyDeviceToHost, stream),
       "copy of counts of choices", sizeof *args.counts);
  must(cudaMemcpyAsync(to.as<void>(kHeader), moves, bytes, cudaMemcpyDeviceToHost, stream),
       "copy of pages to recall", bytes);
}

// The device lists heads in the order in which they are ready.
std::vector<uint32_t> CopiedRecall::by_head(std::span<const RecallMove> fetched,
                                            std::span<const ChoiceRow> rows, std::span<const uint32_t> lists,
                                            RecallMove* out) {
  for (uint32_t r = 0; r < rows.size(); ++r) {
    for (uint32_t i = 0; i < size_.chosen; ++i) {
      const uint32_t page = lists[rows[r].slots + i];
      if (page >= row_of_page_.size()) row_of_page_.resize(page + 1);
      row_of_page_[page] = r;
    }
  }
  const auto place = [&](const RecallMove& move) {
    return std::tuple{row_of_page_[move.block / size_.host.kv_heads], move.head, move.block};
  };
  std::partial_sort_copy(fetched.begin(), fetched.end(), out, out + fetched.size(),
                         [&](const RecallMove& a, const RecallMove& b) { return place(a) < place(b); });
  std::vector<uint32_t> heads;
  for (size_t i = 0; i < fetched.size(); ++i) {
    const auto head = [&](size_t at) { return std::pair{std::get<0>(place(out[at])), out[at].head}; };
    if (i > 0 && head(i) == head(i - 1)) {
      ++heads.back();
    } else {
      heads.push_back(1);
    }
  }
  return heads;
}

void CopiedRecall::start(ChoosesFor step, uint32_t layer, const HostPool& host, __nv_bfloat16* pool,
                         std::span<const ChoiceRow> rows, std::span<const uint32_t> lists,
                         cudaStream_t stream) {
  Task& own = task(step);
  const bool next = step == ChoosesFor::kNextStep;
  const auto& counts = *own.fetched.as<const ChoiceCounts>();
  const std::span fetched(own.fetched.as<const RecallMove>(kHeader),
                          next ? counts.moves_after : counts.before);
  if (fetched.empty()) return;
  auto* const moves = own.moves.as<RecallMove>(next ? uint64_t{layer} * moves_max() * sizeof(RecallMove) : 0);
  const std::vector<uint32_t> heads = by_head(fetched, rows, lists, moves);
  const auto shape = [&] {
    return fmt::format("{} pages of {} heads, layer {}", fetched.size(), heads.size(), layer);
  };
  if (!streamed())
    return must(copy_recalled(host, copies_.copy, pool, {moves, fetched.size()}, stream), "copy_recalled", 0,
                shape);
  StreamedRecall recall{.host = host, .pool = pool};
  for (uint32_t i = 0; i < 2; ++i)
    recall.staging[i] = own.staging.as<__nv_bfloat16>() + i * size_.chosen * host.head_numbers();
  recall.staged_max = size_.chosen, recall.buffers = copies_.staging_buffers;
  recall.streams[0] = stream, recall.streams[1] = own.second;
  recall.begun = own.begun, recall.ended = own.ended;
  must(stream_recalled(recall, moves, heads), "stream_recalled", 0, shape);
}

}  // namespace kvtwin::cuda
