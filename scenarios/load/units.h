// Units of numbers in scenarios and on the command line: 500GB, 80GiB, 60s, 5ms, 90%, 8k, 500e9.
//
// A field states its base unit in its name: host_bytes, jitter_ns, think_cap_s, sessions_per_s. Other fields
// are counts (whole numbers) or plain numbers. A number without a unit is in the base unit.

#ifndef KVTWIN_SCENARIOS_LOAD_UNITS_H_
#define KVTWIN_SCENARIOS_LOAD_UNITS_H_

#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace kvtwin {

enum class BaseUnit { kCount, kNumber, kBytes, kNanoseconds, kSeconds, kPerSecond };

// The base unit of a field by its name; `whole` is whether the field's type is a whole number.
BaseUnit base_unit(std::string_view field, bool whole);

// The units that follow a number of this base unit: "B, kB, MB, ...".
std::string units_of(BaseUnit base);

// `text` without its unit, as a number in the base unit: 500GB -> 500000000000. Text that is no number is
// returned as it is. With `whole`, the result is a whole number: a fraction of a byte or of a nanosecond is
// rounded, a fraction of a count is an Error. The Error has no place.
Result<std::string> without_unit(std::string_view text, BaseUnit base, bool whole);

// `text` in seconds, with or without a unit. The Error has no place.
Result<double> seconds_of(std::string_view text);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_UNITS_H_
