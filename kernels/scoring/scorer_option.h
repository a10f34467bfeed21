// Makes the options of a scorer from the fields of ScoreSpec that hold them (ScorerOption).

#ifndef KVTWIN_KERNELS_SCORING_SCORER_OPTION_H_
#define KVTWIN_KERNELS_SCORING_SCORER_OPTION_H_

#include <charconv>
#include <iterator>
#include <span>
#include <string_view>
#include <type_traits>

#include "kernels/scoring/score.h"

namespace kvtwin::kernels {

// The number whose shortest decimal form is that of `value`: 0.9 for 0.9f.
inline double as_written(float value) {
  char text[32];
  const auto end = std::to_chars(std::begin(text), std::end(text), value).ptr;
  double out = 0;
  std::from_chars(text, end, out);
  return out;
}

// `Access` is a lambda without captures that returns the field of a ScoreSpec.
template <typename Access>
constexpr ScorerOption option(std::string_view field, double low, double high, Access,
                              std::span<const std::string_view> choices = {}, bool odd = false) {
  return {field,
          low,
          high,
          [](const ScoreSpec& spec) {
            const auto value = Access{}(const_cast<ScoreSpec&>(spec));
            if constexpr (std::is_same_v<decltype(value), const float>) return as_written(value);
            return static_cast<double>(value);
          },
          [](ScoreSpec* spec, double value) {
            auto& of_spec = Access{}(*spec);
            of_spec = static_cast<std::remove_reference_t<decltype(of_spec)>>(value);
          },
          choices,
          odd};
}
template <typename Access>
constexpr ScorerOption flag(std::string_view field, Access access) {
  return option(field, 0, 1, access);
}
template <typename Access>
constexpr ScorerOption choice(std::string_view field, std::span<const std::string_view> choices,
                              Access access) {
  return option(field, 0, 0, access, choices);
}

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORER_OPTION_H_
