// The rows of one step: filled by the engine, sent to the GPU in one copy.
//
// Lists have fixed-size records. Lengths of requests are data on the device and not part of any launch.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_STEP_ROWS_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_STEP_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "engine/cuda/device/buffer.h"
#include "kernels/attention/attention_decode.h"
#include "kernels/attention/attention_prefill.h"
#include "kernels/attention/attention_rows.h"
#include "kernels/cache_ops/rope_append_cuda.h"

namespace kvtwin::cuda {

// One row per token. A row's attention is in one of three lists: `decodes` by row and KV head, `chunks` by
// chunk and KV head, or `others`.
struct StepRows {
  std::vector<uint32_t> tokens;  // more than positions: rows that pad the matrix products and access no page
  std::vector<uint32_t> positions;
  std::vector<AppendSlot> slots;   // slot of a row's KV entry
  std::vector<uint32_t> sampling;  // rows, ascending
  std::vector<DecodeSequence> decodes;
  std::vector<PrefillSequence> chunks;
  std::vector<QueryRow> others;
  std::vector<uint32_t> pages;  // page tables, one after the other
  // Rows at the end that belong to no request. They read nothing and write nothing. With them, every step of
  // decodes starts the same operations as one of the captured size (CoreConfig::capture_sizes).
  uint32_t padding = 0;
  // For the log: KV entries read by decodes, and by all other rows; all KV heads count as one.
  uint64_t decode_entries = 0, chunk_entries = 0;

  void clear();
};

// The same rows on the GPU.
struct DeviceRows {
  const uint32_t* tokens = nullptr;
  const uint32_t* positions = nullptr;
  const AppendSlot* slots = nullptr;
  const uint32_t* sampling = nullptr;
  const DecodeSequence* decodes = nullptr;
  const PrefillSequence* chunks = nullptr;
  const QueryRow* others = nullptr;
  const uint32_t* pages = nullptr;
  uint32_t rows = 0;         // with a position
  uint32_t padded_rows = 0;  // with a token
  uint32_t samples = 0, decodes_count = 0, chunks_count = 0, other_rows = 0;
  bool listed = false;  // tables of `decodes` list KV entries (attention_decode.h)

  bool operator==(const DeviceRows&) const = default;
};

// Everything that determines a step's operations and their parameters: addresses and lengths of its lists.
// `more`: those of lists that a KvCache sends itself.
struct StepGraphKey {
  DeviceRows rows;
  std::vector<uint64_t> more;

  void add(uint64_t number) { more.push_back(number); }
  void add(const void* at) { more.push_back(reinterpret_cast<uintptr_t>(at)); }
  void add(const DeviceRows& of);
  bool operator==(const StepGraphKey&) const = default;
};

class RowsUpload {
 public:
  RowsUpload() = default;
  // `bytes`: initial size; it grows if a step needs more.
  static Result<RowsUpload> make(uint64_t bytes);

  // Starts the copy. REQUIRES: the previous copy has completed.
  DeviceRows send(const StepRows& rows, cudaStream_t stream);

 private:
  Result<void> reserve(uint64_t bytes);
  template <typename T>
  const T* put(const std::vector<T>& list);

  Buffer staging_, device_;
  uint64_t used_ = 0;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_STEP_ROWS_H_
