// The lists of a step that the device completes from what the host sends: tables of KV entries that stay on
// the device from step to step, of which only new numbers are sent; the slot of each row and head; and what
// rows of chunks read whose KV entries are listed one by one.
//
// Bound: the kernels move a few bytes for each number; a launch takes longer.

#ifndef KVTWIN_KERNELS_CACHE_OPS_STEP_TABLES_H_
#define KVTWIN_KERNELS_CACHE_OPS_STEP_TABLES_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention_rows.h"
#include "kernels/cache_ops/rope_append_cuda.h"

namespace kvtwin {

// tables[to + i] = numbers[from + i], i < count. One CTA each.
struct TableRange {
  uint32_t to = 0, from = 0, count = 0;
};
constexpr uint32_t kTableRangeMax = 4096;  // numbers that a CTA copies in good time

cudaError_t update_tables(const TableRange* ranges, uint32_t count, const uint32_t* numbers, uint32_t* tables,
                          cudaStream_t stream);

// Where the rows of a request go, for heads that share tables: row i to KV entry first + i of the table, and
// from row `split` on to KV entry second + i.
struct RowCells {
  uint32_t table = 0, first = 0, second = 0, split = 0;
  uint32_t listed = 0;  // not 0: the table lists KV entries (page * page_tokens + slot) instead of pages
};

// A row of the step.
struct RowOf {
  uint32_t cells = kNoBlock;  // of the first head table of its request; kNoBlock: it is written nowhere
  uint32_t row = 0;           // of its request
};

// Tables and column of a head.
struct HeadCells {
  uint32_t cells = 0;  // which of a request's RowCells
  uint32_t column = 0;
};

struct RowSlotArgs {
  const uint32_t* tables = nullptr;
  const RowOf* rows = nullptr;  // [rows]
  const RowCells* cells = nullptr;
  const HeadCells* heads = nullptr;  // [layers][kv_heads]
  AppendSlot* slots = nullptr;       // [layers][rows][kv_heads]
  uint32_t row_count = 0, layers = 0, kv_heads = 0;
  uint32_t page_tokens = 16, columns = 1;
};
cudaError_t write_row_slots(const RowSlotArgs& args, cudaStream_t stream);

// Rows of a chunk, for one head: row i is row `row + i` of the step. Without a ring it reads the table's
// first before + i + 1 KV entries. Of a ring the table lists the first `sinks` positions, then positions
// `from` and up; row i reads the sinks and the last `recent` positions up to its own, context + i.
struct QueryRun {
  uint32_t row = 0, count = 0, to = 0;  // `to`: index of its first QueryRow
  uint32_t table = 0, before = 0, head = 0, column = 0;
  uint32_t sinks = UINT32_MAX;  // UINT32_MAX: no ring
  uint32_t from = 0, context = 0, recent = 0;
};
cudaError_t write_query_rows(const QueryRun* runs, uint32_t count, QueryRow* rows, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_STEP_TABLES_H_
