#include "scenarios/calibrate/nelder_mead.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

constexpr double kSmall = 1e-3;  // of the steps

struct Vertex {
  std::vector<double> at;
  double value = 0;
};

class Simplex {
 public:
  Simplex(const std::vector<Bounded>& bounds,
          const std::function<double(const std::vector<double>&)>& function)
      : bounds_(bounds), function_(function) {
    std::vector<double> start;
    for (const Bounded& one : bounds) {
      KVT_CHECK(one.low <= one.start && one.start <= one.high && one.step > 0);
      start.push_back(one.start);
    }
    vertices_.push_back(evaluated(start));
    for (size_t i = 0; i < bounds.size(); ++i) {
      std::vector<double> at = start;
      at[i] += at[i] + bounds[i].step <= bounds[i].high ? bounds[i].step : -bounds[i].step;
      vertices_.push_back(evaluated(std::move(at)));
    }
    sort();
  }

  const Vertex& best() const { return vertices_.front(); }
  size_t evaluations() const { return evaluations_; }

  bool small() const {
    for (const Vertex& vertex : vertices_) {
      for (size_t i = 0; i < bounds_.size(); ++i) {
        if (std::abs(vertex.at[i] - best().at[i]) > kSmall * bounds_[i].step) return false;
      }
    }
    return true;
  }

  // One iteration: reflects the worst vertex in the centre of the others, expands, contracts or shrinks.
  void move() {
    Vertex& worst = vertices_.back();
    const Vertex reflected = evaluated(beyond_centre(1));
    if (reflected.value < best().value) {
      Vertex expanded = evaluated(beyond_centre(2));
      worst = expanded.value < reflected.value ? std::move(expanded) : reflected;
    } else if (reflected.value < vertices_[vertices_.size() - 2].value) {
      worst = reflected;
    } else {
      Vertex contracted = evaluated(beyond_centre(reflected.value < worst.value ? 0.5 : -0.5));
      if (contracted.value < std::min(reflected.value, worst.value)) {
        worst = std::move(contracted);
      } else {
        shrink();
      }
    }
    sort();
  }

 private:
  Vertex evaluated(std::vector<double> at) {
    for (size_t i = 0; i < at.size(); ++i) at[i] = std::clamp(at[i], bounds_[i].low, bounds_[i].high);
    ++evaluations_;
    const double value = function_(at);
    return {std::move(at), value};
  }
  // centre + factor * (centre - worst), where the centre is that of all vertices but the worst.
  std::vector<double> beyond_centre(double factor) const {
    std::vector<double> out(bounds_.size());
    for (size_t i = 0; i < out.size(); ++i) {
      double centre = 0;
      for (size_t v = 0; v + 1 < vertices_.size(); ++v) centre += vertices_[v].at[i];
      centre /= static_cast<double>(vertices_.size() - 1);
      out[i] = centre + factor * (centre - vertices_.back().at[i]);
    }
    return out;
  }
  void shrink() {
    for (size_t v = 1; v < vertices_.size(); ++v) {
      std::vector<double> at = vertices_[v].at;
      for (size_t i = 0; i < at.size(); ++i) at[i] = (at[i] + best().at[i]) / 2;
      vertices_[v] = evaluated(std::move(at));
    }
  }
  void sort() {
    std::stable_sort(vertices_.begin(), vertices_.end(),
                     [](const Vertex& a, const Vertex& b) { return a.value < b.value; });
  }

  const std::vector<Bounded>& bounds_;
  const std::function<double(const std::vector<double>&)>& function_;
  std::vector<Vertex> vertices_;  // best first
  size_t evaluations_ = 0;
};

}  // namespace

Minimum minimise(const std::vector<Bounded>& bounds, size_t evaluations_max,
                 const std::function<double(const std::vector<double>&)>& function) {
  KVT_CHECK(!bounds.empty());
  Simplex simplex(bounds, function);
  while (simplex.evaluations() < evaluations_max && !simplex.small()) simplex.move();
  return {simplex.best().at, simplex.best().value, simplex.evaluations()};
}

}  // namespace kvtwin
