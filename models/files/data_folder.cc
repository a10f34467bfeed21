#include "models/files/data_folder.h"

#include <cstdlib>
#include <filesystem>

namespace kvtwin {

std::string data_folder(std::string_view name) {
  namespace fs = std::filesystem;
  std::string variable = "KVTWIN_";
  for (const char c : name) variable += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  if (const char* set = std::getenv(variable.c_str()); set != nullptr && *set != '\0') return set;
  std::error_code failed;
  fs::path folder = fs::read_symlink("/proc/self/exe", failed).parent_path();
  for (; folder.has_relative_path(); folder = folder.parent_path()) {
    const fs::path found = folder / "share" / "kvtwin" / name;
    if (fs::is_directory(found, failed)) return found.string();
  }
  return {};
}

}  // namespace kvtwin
