#include "kernels/cache_ops/step_tables.h"

namespace kvtwin {
namespace {

constexpr uint32_t kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    update_kernel(const TableRange* ranges, const uint32_t* numbers, uint32_t* tables) {
  const TableRange range = ranges[blockIdx.x];
  for (uint32_t i = threadIdx.x; i < range.count; i += kThreads)
    tables[range.to + i] = numbers[range.from + i];
}

__global__ void __launch_bounds__(kThreads) slots_kernel(const __grid_constant__ RowSlotArgs args) {
  const uint64_t at = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= uint64_t{args.layers} * args.row_count * args.kv_heads) return;
  const auto head = static_cast<uint32_t>(at % args.kv_heads);
  const uint64_t above = at / args.kv_heads;
  const auto row = static_cast<uint32_t>(above % args.row_count);
  const auto layer = static_cast<uint32_t>(above / args.row_count);
  const RowOf of = args.rows[row];
  AppendSlot out{kNoBlock, 0};
  if (of.cells != kNoBlock) {
    const HeadCells mine = args.heads[layer * args.kv_heads + head];
    const RowCells cells = args.cells[of.cells + mine.cells];
    const uint32_t cell = (of.row < cells.split ? cells.first : cells.second) + of.row;
    uint32_t page = 0;
    if (cells.listed != 0) {
      const uint32_t id = args.tables[cells.table + cell];
      page = id / args.page_tokens, out.slot = id % args.page_tokens;
    } else {
      page = args.tables[cells.table + cell / args.page_tokens], out.slot = cell % args.page_tokens;
    }
    out.block = page * args.columns + mine.column;
  }
  args.slots[at] = out;
}

// One CTA a run.
__global__ void __launch_bounds__(kThreads) runs_kernel(const QueryRun* runs, QueryRow* rows) {
  const QueryRun run = runs[blockIdx.x];
  for (uint32_t i = threadIdx.x; i < run.count; i += kThreads) {
    QueryRow out{run.row + i, run.table, run.before + i + 1, run.head, run.column};
    if (run.sinks != UINT32_MAX) {
      const uint32_t position = run.context + i;
      const uint32_t first = max(run.sinks, position + 1 > run.recent ? position + 1 - run.recent : 0);
      out.sinks = run.sinks, out.gap = first - run.from;
      out.kv_entries = min(run.sinks, position + 1) + (position >= first ? position + 1 - first : 0);
    }
    rows[run.to + i] = out;
  }
}

}  // namespace

cudaError_t write_query_rows(const QueryRun* runs, uint32_t count, QueryRow* rows, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  runs_kernel<<<count, kThreads, 0, stream>>>(runs, rows);
  return cudaGetLastError();
}

cudaError_t update_tables(const TableRange* ranges, uint32_t count, const uint32_t* numbers, uint32_t* tables,
                          cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  update_kernel<<<count, kThreads, 0, stream>>>(ranges, numbers, tables);
  return cudaGetLastError();
}

cudaError_t write_row_slots(const RowSlotArgs& args, cudaStream_t stream) {
  const uint64_t slots = uint64_t{args.layers} * args.row_count * args.kv_heads;
  if (slots == 0) return cudaSuccess;
  slots_kernel<<<static_cast<uint32_t>((slots + kThreads - 1) / kThreads), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin
