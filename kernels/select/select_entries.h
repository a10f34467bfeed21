// Which rows of heads are kept, on the device: the total order of
// docs/design/methods/conventions.md#selection, exact counts, forced rows. The definition is select_rows()
// (select.h), and of the same scores the result is the same, row for row.
//
// A CTA has one head. The ranks of a sample say between which two scores the last kept one almost surely
// is; one pass over the scores leaves a bit for each row above, and a list of the rows between; radix
// selection finds the list's best rows, and bits become rows in ascending order (of equal keys the largest
// rows stay). Where the sample was wrong, or too many scores are alike, rounds over all rows find them
// instead: nothing but time depends on the sample. Floor: 4 bytes read per row, 4 written per kept one, at
// 4.69 TB/s.

#ifndef KVTWIN_KERNELS_SELECT_SELECT_ENTRIES_H_
#define KVTWIN_KERNELS_SELECT_SELECT_ENTRIES_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

struct SelectHead {
  uint32_t rows = 0;
  uint32_t keep = 0;          // besides the forced rows; more than there are: all
  uint32_t forced_first = 0;  // of its ranges
  uint32_t forced_count = 0;
  uint32_t retained = 0;  // where its kept rows go: min(rows, forced + keep) of them
};
// Rows [begin, end) stay whatever their score. Ascending, disjoint.
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
  uint32_t* nan = nullptr;  // grows by the scores among candidates that are no numbers; may be null
  uint32_t count = 0;
  uint32_t rows_max = 0;  // no head has more; at most 524,288 (a bit of shared memory each)
};
cudaError_t select_entries(const SelectArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SELECT_SELECT_ENTRIES_H_
