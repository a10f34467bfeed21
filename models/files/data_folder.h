// Finds the files that kvtwin ships, at run time.

#ifndef KVTWIN_MODELS_FILES_DATA_FOLDER_H_
#define KVTWIN_MODELS_FILES_DATA_FOLDER_H_

#include <string>
#include <string_view>

namespace kvtwin {

// The folder of shipped data called `name` (models, scenarios or traces): $KVTWIN_<NAME> if that is set, else
// share/kvtwin/<name> in the nearest folder above the running program that has one. Build folders and
// installations have the same layout, and neither has a path compiled in. Returns "" if there is none.
std::string data_folder(std::string_view name);

// Searches above `path` in place of the running program. For a module, whose program is an interpreter.
void set_program_path(std::string path);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_FILES_DATA_FOLDER_H_
