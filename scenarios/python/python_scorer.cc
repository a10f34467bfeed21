#include "scenarios/python/python_scorer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/numpy.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/scoring/score.h"

namespace kvtwin {
namespace {

namespace py = pybind11;

// A copy, which the function may keep or change.
py::array_t<float> array_of(const kernels::HeadsView& view) {
  py::array_t<float> out({size_t{view.heads}, size_t{view.rows}, size_t{view.dim}});
  float* to = out.mutable_data();
  for (uint32_t h = 0; h < view.heads; ++h) {
    for (uint32_t i = 0; i < view.rows; ++i) to = std::copy_n(view.row(h, i), view.dim, to);
  }
  return out;
}

py::array_t<int64_t> positions_of(const kernels::ScoreInputs& in) {
  py::array_t<int64_t> out({size_t{in.k.heads}, size_t{in.k.rows}});
  int64_t* to = out.mutable_data();
  for (uint32_t h = 0; h < in.k.heads; ++h) {
    for (uint32_t i = 0; i < in.k.rows; ++i) *to++ = in.positions.at(h, i);
  }
  return out;
}

class PythonScorer final : public kernels::ExternalScorer {
 public:
  PythonScorer(py::function function, std::string name)
      : function_(std::move(function)), name_(std::move(name)) {}
  PythonScorer(const PythonScorer&) = delete;
  PythonScorer& operator=(const PythonScorer&) = delete;
  ~PythonScorer() override {
    const py::gil_scoped_acquire gil;
    function_ = {};
  }

  void score(const kernels::ScoreInputs& in, kernels::ScoreView out) override {
    const py::gil_scoped_acquire gil;
    const py::object answer =
        function_(in.layer, positions_of(in), array_of(in.k), array_of(in.v), array_of(in.q));
    using Scores = py::array_t<double, py::array::c_style | py::array::forcecast>;
    const Scores scores = Scores::ensure(answer);
    if (!scores) {
      PyErr_Clear();
      fail(fmt::format("it returned {}, which is no array of numbers",
                       std::string(py::str(py::type::of(answer)))));
    }
    const std::vector<py::ssize_t> shape(scores.shape(), scores.shape() + scores.ndim());
    if (shape != std::vector<py::ssize_t>{out.heads, out.rows})
      fail(fmt::format("it returned an array of shape ({}), not ({}, {}): a score per KV head and entry",
                       fmt::join(shape, ", "), out.heads, out.rows));
    for (uint32_t h = 0; h < out.heads; ++h) {
      for (uint32_t i = 0; i < out.rows; ++i) {
        const double one = scores.at(h, i);
        if (std::isnan(one)) fail(fmt::format("the score of head {}, entry {} is no number", h, i));
        out.row(h)[i] = static_cast<float>(one);
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw py::value_error(fmt::format("scorer {}: {}", name_, what));
  }

  py::function function_;
  const std::string name_;
};

}  // namespace

std::shared_ptr<kernels::ExternalScorer> python_scorer(py::function function, std::string name) {
  return std::make_shared<PythonScorer>(std::move(function), std::move(name));
}

}  // namespace kvtwin
