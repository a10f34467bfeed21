#include "models/files/data_folder.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

namespace kvtwin {
namespace {

// "": the running program. Never destroyed: a thread may look for data while the program ends.
std::string& program_path() {
  static auto* const path = new std::string;
  return *path;
}

}  // namespace

void set_program_path(std::string path) { program_path() = std::move(path); }

std::string data_folder(std::string_view name) {
  namespace fs = std::filesystem;
  std::string variable = "KVTWIN_";
  for (const char c : name) variable += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  if (const char* set = std::getenv(variable.c_str()); set != nullptr && *set != '\0') return set;
  std::error_code failed;
  fs::path folder = program_path();
  if (folder.empty()) folder = fs::read_symlink("/proc/self/exe", failed);
  folder = folder.parent_path();
  for (; folder.has_relative_path(); folder = folder.parent_path()) {
    const fs::path found = folder / "share" / "kvtwin" / name;
    if (fs::is_directory(found, failed)) return found.string();
  }
  return {};
}

}  // namespace kvtwin
