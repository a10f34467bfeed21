// The files of a checkpoint: finding, mapping, joining and writing them.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "models/files/textproto.h"
#include "models/weights/safetensors.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kWhole[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

// The bytes of a file, read only, for the life of this object.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile() {
    if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }

  static Result<MappedFile> open(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
    if (file < 0) return make_error(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
    struct stat info {};
    MappedFile mapped;
    const bool regular = fstat(file, &info) == 0 && S_ISREG(info.st_mode);
    const auto size = static_cast<size_t>(info.st_size);
    void* const at = regular && size > 0 ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    const int error = errno;
    close(file);
    if (!regular) return make_error(path, "is no regular file", "give a .safetensors file");
    if (size > 0 && at == MAP_FAILED)
      return make_error(path, fmt::format("cannot be mapped: {}", std::strerror(error)));
    if (size > 0) mapped.bytes_ = {static_cast<const std::byte*>(at), size};
    return mapped;
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// The tensors in each file of an index.
Result<std::map<std::string, std::vector<std::string>>> read_index(const std::string& path) {
  const Result<std::string> text = read_text_file(path);
  if (!text) return tl::unexpected<Error>(text.error());
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= 4; };
  const Json index = Json::parse(*text, shallow, false);
  const auto weights = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || weights == index.end() || !weights->is_object())
    return make_error(path, "has no weight_map", "an index has {\"weight_map\": {tensor: file}}");
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [name, file] : weights->items()) {
    const std::string written = file.is_string() ? file.get<std::string>() : std::string();
    if (written.empty() || written.find('/') != std::string::npos || written == "..")
      return make_error(path, fmt::format("puts {} into no file beside it", name.substr(0, 80)),
                        "files of a checkpoint lie in the index's folder");
    files[written].push_back(name);
  }
  return files;
}

}  // namespace

struct Checkpoint::Files {
  std::vector<MappedFile> mapped;
};

Checkpoint::Checkpoint() : files_(std::make_unique<Files>()) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  std::string file = path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    file = (fs::path(path) / kIndex).string();
    if (!fs::exists(file, ignored)) file = (fs::path(path) / kWhole).string();
    if (!fs::exists(file, ignored))
      return make_error(path, fmt::format("holds neither {} nor {}", kIndex, kWhole),
                        "give a checkpoint's folder");
  }
  Checkpoint out;
  out.path_ = path;
  std::map<std::string, std::vector<std::string>> listed;
  const bool is_index = file.ends_with(".json");
  if (is_index) {
    auto index = read_index(file);
    if (!index) return tl::unexpected<Error>(index.error());
    listed = std::move(*index);
  } else {
    listed[fs::path(file).filename().string()];
  }
  for (const auto& [name, wanted] : listed) {
    const std::string shard = (fs::path(file).parent_path() / name).string();
    Result<MappedFile> mapped = MappedFile::open(shard);
    if (!mapped) return tl::unexpected<Error>(mapped.error());
    auto tensors = parse_safetensors(mapped->bytes(), shard);
    if (!tensors) return tl::unexpected<Error>(tensors.error());
    for (const std::string& tensor : wanted) {  // both are sorted
      const auto at = std::lower_bound(tensors->begin(), tensors->end(), tensor,
                                       [](const NamedTensor& t, const std::string& n) { return t.name < n; });
      if (at == tensors->end() || at->name != tensor)
        return make_error(shard, fmt::format("does not hold {}", tensor.substr(0, 80)),
                          "the index says that it does");
      if (is_index) out.tensors_.push_back(*at);
    }
    if (!is_index) out.tensors_ = std::move(*tensors);
    out.files_->mapped.push_back(std::move(*mapped));
  }
  std::sort(out.tensors_.begin(), out.tensors_.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  return out;
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const NamedTensor& t, std::string_view n) { return t.name < n; });
  return at != tensors_.end() && at->name == name ? &at->tensor : nullptr;
}

std::string safetensors_header(const std::vector<NamedTensor>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};  // transformers refuses files without it
  uint64_t at = 0;
  for (const NamedTensor& tensor : tensors) {
    const uint64_t end = at + tensor.tensor.data.size();
    header[tensor.name] = {
        {"dtype", name_of(tensor.tensor.type)}, {"shape", tensor.tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return out + text;
}

Result<void> write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::ofstream file(path, std::ios::binary);
  file << safetensors_header(tensors);
  for (const NamedTensor& tensor : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.tensor.data.data()),
               static_cast<std::streamsize>(tensor.tensor.data.size()));
  }
  file.close();
  if (!file)
    return make_error(path, "cannot be written", "check the folder, its permissions and the disk's space");
  return {};
}

}  // namespace kvtwin
