// Selects the retained rows of heads on the device: total order of
// docs/design/methods/conventions.md#selection, exact counts, forced rows. Definition: select_rows()
// (select.h); equal scores give equal rows.
//
// One CTA per head. The ranks of a sample bound, with high probability, the score of the last retained row.
// One pass over the scores sets a bit for each row above the bounds and lists the rows between them. Radix
// selection finds the best rows of the list, and the bits become rows in ascending order (of equal keys the
// largest rows are retained). If the sample missed, or too many scores are equal, rounds over all rows find
// them instead: only time depends on the sample.
//
// Bound: 4 bytes read per row, 4 written per retained one, at 4.69 TB/s.

#ifndef KVTWIN_KERNELS_SELECT_SELECT_ENTRIES_H_
#define KVTWIN_KERNELS_SELECT_SELECT_ENTRIES_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

struct SelectHead {
  uint32_t rows = 0;
  uint32_t keep = 0;          // in addition to the forced rows; clamped to the rows there are
  uint32_t forced_first = 0;  // index of its first range in SelectArgs::forced
  uint32_t forced_count = 0;
  uint32_t retained = 0;  // offset of its result in SelectArgs::retained: min(rows, forced + keep) rows
};
// Forced rows [begin, end). Ranges ascend and are disjoint.
struct RowRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

struct SelectArgs {
  const float* scores = nullptr;  // row i of head h at h * stride + i
  uint64_t stride = 0;
  const SelectHead* heads = nullptr;  // [count]
  const RowRange* forced = nullptr;
  uint32_t* retained = nullptr;
  uint32_t* nan = nullptr;  // incremented by the number of NaN scores among candidates; may be null
  uint32_t count = 0;
  uint32_t rows_max = 0;  // most rows of a head; at most 524,288 (one bit of shared memory each)
};
cudaError_t select_entries(const SelectArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SELECT_SELECT_ENTRIES_H_
