// Device and node files that state what differs from another one (`base:`).

#ifndef KVTWIN_MODELS_CATALOG_BASE_FILE_H_
#define KVTWIN_MODELS_CATALOG_BASE_FILE_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace google::protobuf {
class Message;
}

namespace kvtwin {

// The path of the catalog's file of this name.
using FindCatalogFile = std::function<Result<std::string>(const std::string& name)>;

// Parses a DeviceSpec or NodeSpec and adds what its base has and it does not state, except name, title and
// the fields that `without` lists. A figure that was measured on the base, or derived from such a
// measurement, counts as assumed here, because this is another GPU; a node with the GPU of its base, and a
// device that states names and a price only, keep them.
//
// A path in `base` or `device` is relative to the file that states it. Fails with file and line if a base is
// missing or the bases form a cycle. `files`, if not null, receives the paths of all bases.
Result<void> parse_with_base(std::string_view text, const std::string& where, const FindCatalogFile& find,
                             google::protobuf::Message* message, std::vector<std::string>* files = nullptr);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_BASE_FILE_H_
