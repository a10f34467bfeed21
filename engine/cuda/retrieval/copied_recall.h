// CopiedRecall recalls pages by the copy engine, in the forms of RecallCopies
// (docs/design/methods/freekv.md#recall): HND host pages through staging buffers, with conversions while the
// next head's pages are copied; NHD host pages as strided copies, or as a copy for each row.
//
// Copies are started by the host, so the list of moves, which the device writes, comes to the host first:
// fetch(), a wait, start(). The recall of this step and that of the next one are two tasks, which may run
// concurrently, with buffers of their own.

#ifndef KVTWIN_ENGINE_CUDA_RETRIEVAL_COPIED_RECALL_H_
#define KVTWIN_ENGINE_CUDA_RETRIEVAL_COPIED_RECALL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/recall_copies.h"
#include "engine/cuda/device/buffer.h"
#include "kernels/cache_ops/copied_recall.h"
#include "kernels/select/page_choice.h"

namespace kvtwin::cuda {

class CopiedRecall {
 public:
  struct Size {
    HostPool host;        // its shape
    uint32_t chosen = 0;  // pages of a head
    uint32_t layers = 0;  // that choose
    uint32_t rows = 0;    // that choose in a step; reserve() adds some
    bool ahead = false;   // pages are recalled for the next step, too
  };
  // Wrong: no room, or what CUDA says. REQUIRES: copies.copy is not kKernel.
  static Result<std::unique_ptr<CopiedRecall>> make(const RecallCopies& copies, const Size& size);
  CopiedRecall(const CopiedRecall&) = delete;
  CopiedRecall& operator=(const CopiedRecall&) = delete;
  ~CopiedRecall();

  // Room for steps with a number of rows that choose. Growing waits for the GPU.
  void reserve(uint32_t rows);
  // Starts the copy of the moves of args.step to the host; `rows` choose.
  void fetch(const ChoiceArgs& args, uint32_t rows, cudaStream_t stream);
  // Starts the fetched moves of a layer (counted as they choose) behind what `stream` has; it continues
  // behind them. REQUIRES: the host has waited for fetch(), and for this task's start() of this layer in an
  // earlier step (this step's task: of any layer). `rows` and `lists` are those of the choice.
  void start(ChoosesFor step, uint32_t layer, const HostPool& host, __nv_bfloat16* pool,
             std::span<const ChoiceRow> rows, std::span<const uint32_t> lists, cudaStream_t stream);

 private:
  struct Task {
    Buffer staging;
    Buffer fetched;  // pinned: ChoiceCounts, then moves
    Buffer moves;    // pinned, by layer: in the order in which they are copied
    cudaStream_t second = nullptr;
    cudaEvent_t begun = nullptr, ended = nullptr;
  };
  CopiedRecall(const RecallCopies& copies, const Size& size) : copies_(copies), size_(size) {}
  Result<void> allocate(Task* task, uint32_t layers);
  Task& task(ChoosesFor step) { return tasks_[static_cast<uint32_t>(step)]; }
  uint32_t moves_max() const { return size_.rows * size_.host.kv_heads * size_.chosen; }
  bool streamed() const { return copies_.layout == HostPageLayout::kHnd; }
  // Copies the fetched moves to `out` by row and head. Returns the number of each head's.
  std::vector<uint32_t> by_head(std::span<const RecallMove> fetched, std::span<const ChoiceRow> rows,
                                std::span<const uint32_t> lists, RecallMove* out);

  const RecallCopies copies_;
  Size size_;
  Task tasks_[2];  // by ChoosesFor
  std::vector<uint32_t> row_of_page_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_RETRIEVAL_COPIED_RECALL_H_
