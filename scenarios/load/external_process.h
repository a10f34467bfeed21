// A scorer that is a program of the user's. It is started by the shell at the first call and speaks on its
// standard input and output, one exchange per layer and compression:
//
//   to it    five arrays in NumPy's .npy format, one after another: layer (int64, no dimension), positions
//            [H][T] (int64), keys [H][T][d], values [H][T][d], queries [Hq][w][d] (float32)
//   from it  one array [H][T] of float32 or float64, without NaN; higher scores are retained
//
// Its standard error is kvtwin's. At the end its input is closed and it is waited for. A run is as
// reproducible as the program: it gets the same arrays in the same order each time.

#ifndef KVTWIN_SCENARIOS_LOAD_EXTERNAL_PROCESS_H_
#define KVTWIN_SCENARIOS_LOAD_EXTERNAL_PROCESS_H_

#include <memory>
#include <string>

#include "kernels/scoring/score_external.h"

namespace kvtwin {

// Starts nothing yet. Wrong answers and a program that ends are thrown as std::runtime_error by score().
std::shared_ptr<kernels::ExternalScorer> external_process(std::string command);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_EXTERNAL_PROCESS_H_
