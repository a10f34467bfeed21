// Safetensors: tensors by name in mapped files, as Hugging Face checkpoints store them.
//
// A file is 8 bytes of header length, a JSON header, then bytes; an index (model.safetensors.index.json)
// names the file of each tensor. Whatever the bytes, opening says what is wrong with them: lengths, JSON,
// shapes, offsets that overlap, leave a hole or lie outside the file. Format: the safetensors project's
// README, "Format".

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

// Element i of a tensor that is drawn: to_bf16(mean + gain * noise(key, i)) (weights.h).
struct TensorDraw {
  uint64_t key = 0;
  float mean = 0;
  float gain = 1;
};

// A tensor somewhere in memory that someone else owns. `data` need not be aligned.
struct TensorView {
  TensorType type = TensorType::kOther;
  std::vector<uint64_t> shape;  // outermost first, as in the file
  std::span<const std::byte> data;
  const TensorDraw* drawing = nullptr;  // what its elements are, where there is no data yet

  bool present() const { return !data.empty() || drawing != nullptr; }
  uint64_t elements() const;
};

// Elements [first, first + count) as fp32. REQUIRES: kF32, kF16 or kBf16, and that many elements.
void read_floats(const TensorView& tensor, uint64_t first, uint64_t count, float* out);
std::vector<float> read_floats(const TensorView& tensor);

struct NamedTensor {
  std::string name;
  TensorView tensor;
};

// The tensors in `bytes`, sorted by name; they point into it. `where` opens every message.
Result<std::vector<NamedTensor>> parse_safetensors(std::span<const std::byte> bytes,
                                                   const std::string& where);

// All tensors of a checkpoint. Keeps its files mapped; a file must not be changed meanwhile.
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

// The bytes of a file that parse_safetensors() reads back. Tensors are stored in the order given, the
// header padded so that their bytes begin at a multiple of 8.
std::string safetensors_header(const std::vector<NamedTensor>& tensors);
Result<void> write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_WEIGHTS_SAFETENSORS_H_
