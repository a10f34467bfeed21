// Layout of the workspace that the kernels of attention_scores.h share.

#ifndef KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_PARTS_CUH_
#define KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_PARTS_CUH_

#include "kernels/grids/attention_score_grid.h"
#include "kernels/scoring/cuda/attention_scores.h"

namespace kvtwin::device {

constexpr float kLog2e = 1.4426950408889634f;

constexpr uint32_t kFewColumns = 8;  // (query head, query row) pairs of one mma with 16 keys
constexpr uint32_t kFewKeys = 256;   // keys of a CTA with so few columns

__host__ __device__ inline uint32_t tiles_of(uint32_t count, uint32_t each) {
  return (count + each - 1) / each;
}
// Merges two partial softmaxes: the largest logit, and the sum of powers of two relative to it.
__device__ inline float2 joined(float2 a, float2 b) {
  const float most = fmaxf(a.x, b.x), from = most == -INFINITY ? 0 : most;
  return {most, a.y * exp2f(a.x - from) + b.y * exp2f(b.x - from)};
}

// Many query rows: partial softmaxes [heads][key tiles][lanes][padded queries], one per CTA's keys and query
// row, then the logarithm of each row's total. If heads and key tiles are too few for the SMs, `splits` CTAs
// share the query rows of a key tile; their sums follow: [splits][heads][lanes][padded keys].
struct ManyWorkspace {
  uint32_t key_tiles, queries, lanes, splits;

  __host__ __device__ explicit ManyWorkspace(const AttentionScoreArgs& args)
      : ManyWorkspace(AttentionScoreGrid::of(args.rows_max, args.queries_max, args.count), args.lanes()) {}
  __host__ __device__ uint32_t keys() const { return key_tiles * kAttentionScoreTileKeys; }
  __host__ __device__ size_t rows() const { return size_t{lanes} * queries; }
  __host__ __device__ size_t part(uint32_t head, uint32_t tile) const {
    return (size_t{head} * key_tiles + tile) * rows();
  }
  __device__ float2* parts(const AttentionScoreArgs& args) const {
    return static_cast<float2*>(args.workspace);
  }
  __device__ float* totals(const AttentionScoreArgs& args) const {
    return reinterpret_cast<float*>(parts(args) + part(args.count, 0));
  }
  // Output row `of_group` of a head, summed over one split of its query rows. REQUIRES: splits > 1.
  __device__ float* shared_sums(const AttentionScoreArgs& args, uint32_t split, uint32_t head,
                                uint32_t of_group) const {
    return totals(args) + args.count * rows() +
           ((size_t{split} * args.count + head) * lanes + of_group) * keys();
  }
  // Includes the split sums of any number of heads up to args.count.
  size_t bytes(const AttentionScoreArgs& args) const {
    return part(args.count, 0) * sizeof(float2) + args.count * rows() * sizeof(float) +
           size_t{kAttentionScoreSplitCtas} * lanes * kAttentionScoreTileKeys * sizeof(float);
  }

 private:
  __host__ __device__ ManyWorkspace(const AttentionScoreGrid& grid, uint32_t lanes_of)
      : key_tiles(grid.key_tiles),
        queries(grid.row_tiles * kAttentionScoreTileRows),
        lanes(lanes_of),
        splits(grid.splits) {}
};

// Few query rows: logits [heads][columns][padded rows], then partial softmaxes [heads][key
// tiles][kFewColumns]. Column g * queries_max + i is query row i of the group's head g.
struct FewWorkspace {
  uint32_t columns, padded, key_tiles;

  __host__ __device__ explicit FewWorkspace(const AttentionScoreArgs& args)
      : columns(args.group * args.queries_max),
        padded(tiles_of(args.rows_max, 8) * 8),
        key_tiles(tiles_of(args.rows_max, kFewKeys)) {}
  __host__ __device__ size_t logits() const { return size_t{columns} * padded; }  // per head
  __host__ __device__ size_t parts() const { return size_t{key_tiles} * kFewColumns; }
  __device__ float* logits_of(const AttentionScoreArgs& args, uint32_t head, uint32_t column) const {
    return static_cast<float*>(args.workspace) + head * logits() + size_t{column} * padded;
  }
  __device__ float2* parts_of(const AttentionScoreArgs& args, uint32_t head) const {
    return reinterpret_cast<float2*>(static_cast<float*>(args.workspace) + args.count * logits()) +
           head * parts();
  }
  size_t bytes(const AttentionScoreArgs& args) const {
    return args.count * (logits() * sizeof(float) + parts() * sizeof(float2));
  }
};

inline bool has_few_columns(const AttentionScoreArgs& args) {
  return args.queries_max > 0 && args.group * args.queries_max <= kFewColumns;
}
// REQUIRES: has_few_columns(args), not join_logits.
cudaError_t few_logits(const AttentionScoreArgs& args, cudaStream_t stream);  // the first of two kernels
cudaError_t attention_scores_with_few(const AttentionScoreArgs& args, cudaStream_t stream);

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_PARTS_CUH_
