#include "engine/common/retrieval/partial_keys.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "engine/methods/retrieval_spec.h"
#include "kernels/dense/low_rank.h"

namespace kvtwin::cpu {
namespace {

uint32_t columns_of(uint32_t dim, int64_t fraction_q32) {
  const auto rounded = static_cast<uint32_t>((dim * fraction_q32 + kOneQ32 / 2) / kOneQ32);
  return std::clamp(rounded, 1u, dim);
}

// Returns x^T gram x.
double energy(const std::vector<double>& gram, size_t at, const double* x, uint32_t dim) {
  double sum = 0;
  for (uint32_t i = 0; i < dim; ++i) {
    double row = 0;
    for (uint32_t j = 0; j < dim; ++j) row += gram[at + size_t{i} * dim + j] * x[j];
    sum += x[i] * row;
  }
  return sum;
}

}  // namespace

PartialKeys::PartialKeys(const LlmSpec& llm, int64_t columns_q32, bool unit)
    : heads_(llm.kv_heads),
      group_(llm.query_heads / llm.kv_heads),
      dim_(llm.head_dim),
      columns_(columns_of(llm.head_dim, columns_q32)),
      unit_(unit),
      queries_(unit ? 0 : size_t{heads_} * dim_ * dim_),
      keys_gram_(queries_.size()) {}

void PartialKeys::add(const float* q, const float* k) {
  if (!directions_.empty()) {
    const size_t at = partial_.size();
    partial_.resize(at + size_t{heads_} * columns_);
    for (uint32_t h = 0; h < heads_; ++h)
      project(h, k + size_t{h} * dim_, partial_.data() + at + size_t{h} * columns_);
    return;
  }
  for (uint32_t h = 0; h < heads_ && !unit_; ++h) {
    const size_t gram = size_t{h} * dim_ * dim_;
    kernels::add_gram_ref(q + size_t{h} * group_ * dim_, group_, dim_, queries_.data() + gram);
    kernels::add_gram_ref(k + size_t{h} * dim_, 1, dim_, keys_gram_.data() + gram);
  }
  keys_.insert(keys_.end(), k, k + size_t{heads_} * dim_);
}

void PartialKeys::choose_columns() {
  KVT_CHECK(directions_.empty());
  for (uint32_t h = 0; h < heads_; ++h) {
    if (unit_) {
      const size_t first = directions_.size();
      directions_.resize(first + size_t{columns_} * dim_);
      for (uint32_t c = 0; c < columns_; ++c) directions_[first + size_t{c} * dim_ + c] = 1;
      continue;
    }
    const size_t at = size_t{h} * dim_ * dim_;
    const auto from = queries_.begin() + static_cast<ptrdiff_t>(at);
    const kernels::Eigen eigen =
        kernels::symmetric_eigen_ref(dim_, {from, from + static_cast<ptrdiff_t>(size_t{dim_} * dim_)});
    std::vector<double> carried;
    for (uint32_t i = 0; i < dim_; ++i) {
      const double* const direction = eigen.vectors.data() + size_t{i} * dim_;
      carried.push_back(eigen.values[i] * energy(keys_gram_, at, direction, dim_));
    }
    std::vector<uint32_t> order(dim_);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return carried[a] > carried[b]; });
    for (uint32_t c = 0; c < columns_; ++c) {
      const auto row = eigen.vectors.begin() + static_cast<ptrdiff_t>(size_t{order[c]} * dim_);
      directions_.insert(directions_.end(), row, row + dim_);
    }
  }
  const size_t tokens = keys_.size() / (size_t{heads_} * dim_);
  for (size_t t = 0; t < tokens; ++t) add(nullptr, keys_.data() + t * heads_ * dim_);
  keys_.clear();
  queries_.clear();
  keys_gram_.clear();
}

void PartialKeys::project(uint32_t head, const float* q, float* partial) const {
  kernels::project_ref(q, directions_.data() + size_t{head} * columns_ * dim_, columns_, dim_, partial);
}

}  // namespace kvtwin::cpu
