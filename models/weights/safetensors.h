// Reads and writes safetensors: named tensors in mapped files, as in Hugging Face checkpoints.
//
// A file is 8 bytes of header length, a JSON header, then bytes. An index (model.safetensors.index.json)
// names the file of each tensor. Opening any bytes either succeeds or returns an error about lengths, JSON,
// shapes, or offsets that overlap, leave a gap or lie outside the file. Format: the README of the safetensors
// project, section "Format".

#ifndef KVTWIN_MODELS_WEIGHTS_SAFETENSORS_H_
#define KVTWIN_MODELS_WEIGHTS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

enum class TensorType : uint8_t { kF32, kF16, kBf16, kI32, kI64, kOther };
const char* name_of(TensorType type);
uint32_t bytes_of(TensorType type);  // of one element; kOther: 0

// Element i of a drawn tensor is to_bf16(mean + gain * noise(key, i)) (weights.h).
struct TensorDraw {
  uint64_t key = 0;
  float mean = 0;
  float gain = 1;
};

// A tensor in memory owned by others. `data` need not be aligned.
struct TensorView {
  TensorType type = TensorType::kOther;
  std::vector<uint64_t> shape;  // outermost first, as in the file
  std::span<const std::byte> data;
  const TensorDraw* drawing = nullptr;  // definition of its elements, if there is no data yet

  bool present() const { return !data.empty() || drawing != nullptr; }
  uint64_t elements() const;
};

// Elements [first, first + count) as fp32. REQUIRES: the type is kF32, kF16 or kBf16, and the elements exist.
void read_floats(const TensorView& tensor, uint64_t first, uint64_t count, float* out);
std::vector<float> read_floats(const TensorView& tensor);

struct NamedTensor {
  std::string name;
  TensorView tensor;
};

// The tensors in `bytes`, sorted by name; they point into `bytes`. `where` opens every message.
Result<std::vector<NamedTensor>> parse_safetensors(std::span<const std::byte> bytes,
                                                   const std::string& where);

// All tensors of a checkpoint. Its files stay mapped and must not be changed meanwhile.
class Checkpoint {
 public:
  // `path`: a .safetensors file, an index, or a folder with either.
  static Result<Checkpoint> open(const std::string& path);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::vector<NamedTensor>& tensors() const { return tensors_; }  // sorted by name
  const TensorView* find(std::string_view name) const;                  // null: there is none
  const std::string& path() const { return path_; }

 private:
  struct Files;
  Checkpoint();

  std::string path_;
  std::unique_ptr<Files> files_;
  std::vector<NamedTensor> tensors_;
};

// The header of a file that parse_safetensors() reads. Tensors are stored in the given order; the header is
// padded so that their bytes start at a multiple of 8.
std::string safetensors_header(const std::vector<NamedTensor>& tensors);
Result<void> write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_WEIGHTS_SAFETENSORS_H_
