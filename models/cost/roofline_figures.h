// Figures that every roofline price uses.

#ifndef KVTWIN_MODELS_COST_ROOFLINE_FIGURES_H_
#define KVTWIN_MODELS_COST_ROOFLINE_FIGURES_H_

namespace kvtwin {

constexpr double kBf16Bytes = 2, kFp32Bytes = 4;
// Arithmetic outside the tensor cores, as a fraction of their dense bf16 rate.
constexpr double kVectorFraction = 1.0 / 16;

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_ROOFLINE_FIGURES_H_
