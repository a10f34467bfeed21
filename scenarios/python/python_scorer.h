// A Python function that scores KV entries in this process (guide: docs/guides/a-scorer-in-python.md):
//
//   function(layer: int, positions [H][T] int64, keys [H][T][d], values [H][T][d], queries [Hq][w][d]
//   float32)
//     -> scores [H][T], without NaN; higher scores are retained

#ifndef KVTWIN_SCENARIOS_PYTHON_PYTHON_SCORER_H_
#define KVTWIN_SCENARIOS_PYTHON_PYTHON_SCORER_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "kernels/scoring/score_external.h"

namespace kvtwin {

// May be used and dropped by any thread, with or without the GIL. score() throws what the function raises, as
// pybind11::error_already_set, and a ValueError about other answers. `name` is for messages.
std::shared_ptr<kernels::ExternalScorer> python_scorer(pybind11::function function, std::string name);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_PYTHON_PYTHON_SCORER_H_
