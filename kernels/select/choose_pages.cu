#include "kernels/common/bf16_chunk.cuh"
#include "kernels/select/best_pages.cuh"
#include "kernels/select/choosing_heads.cuh"
#include "kernels/select/page_choice.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = kChoiceThreads, kWarps = kThreads / 32;

// Shared memory of a CTA.
struct Shared : BestPages {
  uint32_t victims, first_move, moves;
};

__device__ bool holds(const uint32_t* ascending, uint32_t count, uint32_t page) {
  uint32_t low = 0, high = count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (ascending[middle] < page) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && ascending[low] == page;
}

// group_cosine_ref < tau. One warp per query head; their cosines are summed in order of heads.
__device__ bool turned(const ChoiceShape& shape, Shared& shared, const __nv_bfloat16* q,
                       const __nv_bfloat16* before) {
  const uint32_t lane = threadIdx.x % 32, g = threadIdx.x / 32;
  __syncthreads();
  if (g < shape.group) {
    float both = 0, mine = 0, other = 0;
    for (uint32_t i = lane; i < shape.head_dim; i += 32) {
      const float a = __bfloat162float(q[size_t{g} * shape.head_dim + i]);
      const float b = __bfloat162float(before[size_t{g} * shape.head_dim + i]);
      both = fmaf(a, b, both), mine = fmaf(a, a, mine), other = fmaf(b, b, other);
    }
#pragma unroll
    for (int by = 16; by > 0; by /= 2) {
      both += __shfl_xor_sync(kAllLanes, both, by);
      mine += __shfl_xor_sync(kAllLanes, mine, by);
      other += __shfl_xor_sync(kAllLanes, other, by);
    }
    const float norms = sqrtf(mine) * sqrtf(other);
    if (lane == 0) shared.parts[g] = norms > 0 ? fminf(fmaxf(both / norms, -1.f), 1.f) : 0;
  }
  __syncthreads();
  float sum = 0;
  for (uint32_t i = 0; i < shape.group; ++i) sum += shared.parts[i];
  const float cosine = fminf(fmaxf(sum / static_cast<float>(shape.group), -1.f), 1.f);
  return shape.tau > -1 && static_cast<double>(cosine) < shape.tau;
}

// Lists of one KV head in shared memory, [chosen] each.
struct HeadLists {
  uint64_t* keys;  // sort keys of victims
  uint32_t *chosen, *held, *victims, *order;

  __device__ HeadLists(uint64_t* space, uint32_t count) : keys(space) {
    chosen = reinterpret_cast<uint32_t*>(space + count);
    held = chosen + count, victims = held + count, order = victims + count;
  }
};
constexpr size_t kListBytes = sizeof(uint64_t) + 4 * sizeof(uint32_t);  // bytes of all lists, per page

// Sort key of the page in a slot (page_score.h, replace_slots_ref): pages without a score are replaced first.
__device__ uint64_t worth(const float* scores, uint32_t candidates, uint32_t page) {
  return page < candidates ? uint64_t{ordered(scores[page])} << 32 | page : 0;
}

// Updates held to the chosen pages: the i-th missing page takes the slot of the i-th worst victim. Ranks are
// computed by counting, because the lists are short. Returns the number of missing pages.
__device__ uint32_t replace(Shared& shared, const HeadLists& lists, uint32_t count, const float* scores,
                            uint32_t candidates) {
  if (threadIdx.x == 0) shared.victims = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const uint32_t page = lists.held[i];
    if (holds(lists.chosen, count, page)) continue;
    const uint32_t at = atomicAdd(&shared.victims, 1);
    lists.victims[at] = i, lists.keys[at] = worth(scores, candidates, page);
  }
  __syncthreads();
  const uint32_t victims = shared.victims;
  for (uint32_t v = threadIdx.x; v < victims; v += kThreads) {
    uint32_t worse = 0;
    for (uint32_t k = 0; k < victims; ++k)
      worse += lists.keys[k] < lists.keys[v] ||
               (lists.keys[k] == lists.keys[v] && lists.victims[k] < lists.victims[v]);
    lists.order[worse] = lists.victims[v];
  }
  __syncthreads();
  // There are as many victims as missing pages. A missing page's rank among them is a prefix sum: chosen
  // ascends, and each thread has adjacent pages.
  const uint32_t each = (count + kThreads - 1) / kThreads;
  const uint32_t first = min(threadIdx.x * each, count), end = min(first + each, count);
  const auto absent = [&](uint32_t i) {
    for (uint32_t k = 0; k < count; ++k) {
      if (lists.held[k] == lists.chosen[i]) return false;
    }
    return true;
  };
  uint32_t own = 0, missing;
  for (uint32_t i = first; i < end; ++i) own += absent(i);
  uint32_t rank = sum_before<kWarps>(own, shared.sums, &missing);
  uint32_t mine[kChosenMax / kThreads];
  for (uint32_t i = first; i < end; ++i) mine[i - first] = absent(i) ? rank++ : count;
  __syncthreads();
  for (uint32_t i = first; i < end; ++i) {
    if (mine[i - first] < count) lists.held[lists.order[mine[i - first]]] = lists.chosen[i];
  }
  __syncthreads();
  return missing;
}

// A page table is in order of position: a page's index is its rank among those held.
__device__ void write_table(const ChoiceShape& shape, const ChoiceArgs& args, const ChoiceRow& row,
                            const uint32_t* held, uint32_t head) {
  uint32_t* const table = args.tables + row.table + size_t{head} * row.table_stride;
  for (uint32_t i = threadIdx.x; i < shape.chosen; i += kThreads) {
    uint32_t rank = 0;
    for (uint32_t k = 0; k < shape.chosen; ++k) rank += held[k] < held[i];
    table[rank] = args.lists[row.slots + i];
  }
}

// Lists the moves for all slots whose page changed, and updates `retained`. REQUIRES: each thread reads only
// its own slots.
__device__ void move(const ChoiceShape& shape, const ChoiceArgs& args, const ChoiceRow& row, Shared& shared,
                     const uint32_t* held, uint32_t* retained, uint32_t head, uint32_t missing, bool after) {
  const bool skipped = after && row.no_more != 0;
  if (threadIdx.x == 0) {
    if (after) atomicAdd(&args.counts->after, missing);
    if (!skipped)
      shared.first_move = atomicAdd(after ? &args.counts->moves_after : &args.counts->before, missing);
    shared.moves = 0;
  }
  __syncthreads();
  RecallMove* const moves = after ? args.after : args.before;
  for (uint32_t i = threadIdx.x; i < shape.chosen; i += kThreads) {
    const uint32_t page = held[i];
    if (page == retained[i]) continue;
    retained[i] = page;
    if (skipped) continue;
    moves[shared.first_move + atomicAdd(&shared.moves, 1)] = {
        args.lists[row.owners + page] - shape.first_host, head,
        args.lists[row.slots + i] * shape.kv_heads + head};
  }
}

// The page in a slot at the beginning of the step.
__device__ uint32_t held_in(const ChoiceRow& row, const uint32_t* retained, uint32_t slot) {
  constexpr uint32_t kNobody = 0xffffffffu;
  return row.held == Held::kNothing ? kNobody : row.held == Held::kFirst ? slot : retained[slot];
}

// Pages that stay are no candidates: neither in a softmax nor among the best.
__device__ void leave_out(const ChoiceShape& shape, const ChoiceArgs& args, const ChoiceRow& row,
                          float* scores, uint32_t head, uint32_t rows) {
  if (args.stay == 0) return;
  const uint32_t* const own = args.stays + (size_t{row.state} * shape.kv_heads + head) * args.stay;
  for (uint32_t i = threadIdx.x; i < args.stay * rows; i += kThreads) {
    const uint32_t page = own[i % args.stay];
    if (page < row.candidates) scores[size_t{i / args.stay} * shape.score_stride + page] = -INFINITY;
  }
  __syncthreads();
}

// The forced recall of a head; null if nothing is forced.
__device__ const kernels::HeadRecall* notify(const ChoiceShape& shape, const ChoiceArgs& args,
                                             const ChoiceRow& row, uint32_t head) {
  const bool moves = row.held != Held::kInPlace && row.held != Held::kNothing;
  if (args.forced_outcome == nullptr || !moves) return nullptr;
  return args.forced_outcome + size_t{blockIdx.y} * shape.kv_heads + head;
}

// force_missing_ref: afterwards the chosen pages differ from the held ones by `missing` pages.
__device__ void force_missing(const HeadLists& lists, uint32_t count, float* scores, uint32_t candidates,
                              uint32_t missing) {
  for (uint32_t i = threadIdx.x; i < count; i += kThreads)
    lists.keys[i] = worth(scores, candidates, lists.held[i]);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    uint32_t worse = 0;
    for (uint32_t k = 0; k < count; ++k)
      worse += lists.keys[k] < lists.keys[i] || (lists.keys[k] == lists.keys[i] && k < i);
    const uint32_t page = lists.held[i];
    if (page < candidates) scores[page] = worse < missing ? -INFINITY : INFINITY;
  }
  __syncthreads();
}

// Updates the slots of one KV head of a row whose pages move. REQUIRES: lists.chosen is set.
__device__ void choose_slots(const ChoiceShape& shape, const ChoiceArgs& args, const ChoiceRow& row,
                             Shared& shared, const HeadLists& lists, const float* scores, uint32_t head) {
  const uint32_t count = shape.chosen;
  const bool after = args.step == ChoosesFor::kNextStep;
  uint32_t* const retained = args.held + (size_t{row.state} * shape.kv_heads + head) * count;
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    lists.held[i] = held_in(row, retained, i);
    retained[i] = lists.held[i];
  }
  __syncthreads();
  uint32_t missing = count;
  if (row.held == Held::kNothing) {
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) lists.held[i] = lists.chosen[i];
    __syncthreads();
  } else {
    missing = replace(shared, lists, count, scores, row.candidates);
  }
  if (!after) write_table(shape, args, row, lists.held, head);
  move(shape, args, row, shared, lists.held, retained, head, missing, after);
}

// Whether a head chooses for this step: its query turned, or its row trusts no choice, or that is forced.
__device__ bool chooses_now(const ChoiceShape& shape, const ChoiceArgs& args, const ChoiceRow& row,
                            Shared& shared, uint32_t head) {
  if (const kernels::HeadRecall* const forced_outcome = notify(shape, args, row, head);
      forced_outcome != nullptr) {
    if (forced_outcome->turned != 0 && threadIdx.x == 0) atomicAdd(&args.counts->turned, 1);
    return forced_outcome->before != 0;
  }
  if (row.held != Held::kTrusted) return true;
  const size_t width = size_t{shape.group} * shape.head_dim;
  const bool out = turned(shape, shared, args.q + (size_t{row.row} * shape.kv_heads + head) * width,
                          args.q_before + (size_t{row.state} * shape.kv_heads + head) * width);
  if (out && threadIdx.x == 0) atomicAdd(&args.counts->turned, 1);
  return out;
}

// One CTA per KV head of a row.
__global__ void __launch_bounds__(kThreads)
    compare_kernel(const __grid_constant__ ChoiceShape shape, const __grid_constant__ ChoiceArgs args) {
  extern __shared__ __align__(8) uint64_t space[];
  __shared__ Shared shared;
  const uint32_t head = blockIdx.x;
  const ChoiceRow row = args.rows[blockIdx.y];
  if (row.candidates == 0) return;  // of the whole CTA
  const bool now = chooses_now(shape, args, row, shared, head);
  if (threadIdx.x == 0) args.now[blockIdx.y * shape.kv_heads + head] = now ? 1 : 0;
  if (now) return;
  auto* const held = reinterpret_cast<uint32_t*>(space);
  const uint32_t* const retained = args.held + (size_t{row.state} * shape.kv_heads + head) * shape.chosen;
  for (uint32_t i = threadIdx.x; i < shape.chosen; i += kThreads) held[i] = held_in(row, retained, i);
  __syncthreads();
  write_table(shape, args, row, held, head);
}

// One CTA per KV head of a row.
__global__ void __launch_bounds__(kThreads)
    choose_kernel(const __grid_constant__ ChoiceShape shape, const __grid_constant__ ChoiceArgs args) {
  extern __shared__ __align__(8) uint64_t space[];
  __shared__ Shared shared;
  const uint32_t head = blockIdx.x;
  if (!takes(args, blockIdx.y * shape.kv_heads + head)) return;
  const ChoiceRow row = args.rows[blockIdx.y];
  if (row.candidates == 0) return;  // of the whole CTA
  const HeadLists lists(space, shape.chosen);
  float* const scores =
      args.scores + (size_t{blockIdx.y} * shape.kv_heads + head) * shape.score_rows() * shape.score_stride;
  leave_out(shape, args, row, scores, head, shape.score_rows());
  pool(shape, shared, scores, row.candidates);
  __syncthreads();
  leave_out(shape, args, row, scores, head, 1);
  if (const kernels::HeadRecall* const forced_outcome = notify(shape, args, row, head);
      forced_outcome != nullptr) {
    const uint32_t* const retained = args.held + (size_t{row.state} * shape.kv_heads + head) * shape.chosen;
    for (uint32_t i = threadIdx.x; i < shape.chosen; i += kThreads) lists.held[i] = held_in(row, retained, i);
    __syncthreads();
    force_missing(lists, shape.chosen, scores, row.candidates, forced_outcome->missing);
  }
  choose(shared, scores, row.candidates, shape.chosen, lists.chosen);
  if (row.held != Held::kInPlace) return choose_slots(shape, args, row, shared, lists, scores, head);
  uint32_t* const table = args.tables + row.table + size_t{head} * row.table_stride;
  for (uint32_t i = threadIdx.x; i < shape.chosen; i += kThreads)
    table[i] = args.lists[row.owners + lists.chosen[i]];
}

__global__ void keep_kernel(const QueryRetained* rows, uint32_t numbers, const __nv_bfloat16* q,
                            __nv_bfloat16* q_before) {
  const QueryRetained one = rows[blockIdx.x];
  if (one.state == kNoState) return;
  const auto* const from = reinterpret_cast<const uint4*>(q + size_t{one.row} * numbers);
  auto* const to = reinterpret_cast<uint4*>(q_before + size_t{one.state} * numbers);
  for (uint32_t i = threadIdx.x; i < numbers / 8; i += kThreads) to[i] = from[i];
}

bool right(const ChoiceShape& shape) {
  const bool heads = shape.kv_heads > 0 && shape.group > 0 && shape.group <= 8;
  return heads && shape.chosen > 0 && shape.chosen <= kChosenMax;
}

}  // namespace

cudaError_t compare_queries(const ChoiceShape& shape, const ChoiceArgs& args, cudaStream_t stream) {
  if (!right(shape) || args.now == nullptr) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  compare_kernel<<<dim3(shape.kv_heads, args.count), kThreads, shape.chosen * sizeof(uint32_t), stream>>>(
      shape, args);
  return cudaGetLastError();
}

cudaError_t choose_pages(const ChoiceShape& shape, const ChoiceArgs& args, cudaStream_t stream) {
  if (!right(shape)) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  const size_t bytes = shape.chosen * kListBytes;
  choose_kernel<<<dim3(shape.kv_heads, args.count), kThreads, bytes, stream>>>(shape, args);
  return cudaGetLastError();
}

cudaError_t keep_queries(const QueryRetained* rows, uint32_t count, uint32_t numbers, const __nv_bfloat16* q,
                         __nv_bfloat16* q_before, cudaStream_t stream) {
  if (numbers % 8 != 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  keep_kernel<<<count, kThreads, 0, stream>>>(rows, numbers, q, q_before);
  return cudaGetLastError();
}

}  // namespace kvtwin
