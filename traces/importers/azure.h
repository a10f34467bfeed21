// Helpers of the importer and the exporter of Azure's CSV.

#ifndef KVTWIN_TRACES_IMPORTERS_AZURE_H_
#define KVTWIN_TRACES_IMPORTERS_AZURE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace kvtwin {

constexpr std::string_view kAzureTitles = "TIMESTAMP,ContextTokens,GeneratedTokens";

// Nanoseconds since 1970. Error.where is empty.
Result<int64_t> parse_azure_time(std::string_view text);
// Seven digits after the decimal point, as in the source.
std::string azure_time(int64_t unix_ns);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_IMPORTERS_AZURE_H_
