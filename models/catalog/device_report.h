// What `kvtwin device` prints and writes: figures with their origin, and files to start from.

#ifndef KVTWIN_MODELS_CATALOG_DEVICE_REPORT_H_
#define KVTWIN_MODELS_CATALOG_DEVICE_REPORT_H_

#include <string>

#include "engine/base/result.h"
#include "models/catalog/catalog.h"

namespace kvtwin {

// A table of the figures of a device or node: value, basis, and whether the file or its base states it.
// `name` is a device of the catalog or the path of either kind of file. Fails with every error of the file.
Result<std::string> device_report(const Catalog& catalog, const std::string& name);

// The text of a device's file that states nothing but its name and base, with the base's figures as comments.
Result<std::string> new_device_text(const Catalog& catalog, const std::string& name, const std::string& base);
// The same of a node of such devices: `device` is the device's file, `base` a node.
Result<std::string> new_node_text(const Catalog& catalog, const std::string& name, const std::string& device,
                                  const std::string& base);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_DEVICE_REPORT_H_
