#include "engine/cuda/device/device_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "engine/cuda/device/cuda_check.h"
#include "kernels/common/small_floats.h"
#include "kernels/dense/dense_cuda.h"

namespace kvtwin::cuda {

// Assigns addresses from `base` on, and fills them. Without a base it only counts bytes.
class DeviceWeights::Upload {
 public:
  static constexpr uint64_t kPiece = uint64_t{32} << 20;

  Result<void> fill_from(char* base) {
    base_ = base;
    at_ = 0;
    for (Piece& piece : pieces_) {
      Result<Buffer> memory = Buffer::make(Buffer::Kind::kPinned, kPiece, "weights", "a staging buffer");
      if (!memory) return tl::unexpected<Error>(memory.error());
      piece.memory = std::move(*memory);
      if (Result<void> ok = check(cudaEventCreate(&piece.free), "cudaEventCreate", "weights"); !ok) return ok;
    }
    return {};
  }
  ~Upload() {
    for (Piece& piece : pieces_) {
      if (piece.free == nullptr) continue;
      cudaEventSynchronize(piece.free);
      cudaEventDestroy(piece.free);
    }
  }

  uint64_t bytes() const { return at_; }
  const Result<void>& result() const { return result_; }

  // Places matrices or vectors consecutively; null if the first one is absent.
  const __nv_bfloat16* bf16(std::initializer_list<const TensorView*> tensors) {
    if (!(*tensors.begin())->present()) return nullptr;
    const uint64_t first = at_;
    for (const TensorView* tensor : tensors) {
      if (base_ != nullptr && result_) result_ = put(*tensor, base_ + at_);
      at_ += tensor->elements() * sizeof(uint16_t);
    }
    align();
    return pointer<__nv_bfloat16>(first);
  }
  const float* fp32(const TensorView& tensor) {
    if (!tensor.present()) return nullptr;
    const uint64_t first = at_, count = tensor.elements();
    if (base_ != nullptr && result_) {
      const std::vector<float> values = read_floats(tensor);
      result_ = check(cudaMemcpy(base_ + at_, values.data(), count * sizeof(float), cudaMemcpyHostToDevice),
                      "copy of a vector of weights", fmt::format("{} numbers", count), count * sizeof(float));
    }
    at_ += count * sizeof(float);
    align();
    return pointer<float>(first);
  }

 private:
  struct Piece {
    Buffer memory;
    cudaEvent_t free = nullptr;
  };

  template <typename T>
  const T* pointer(uint64_t offset) const {  // null while counting
    return base_ != nullptr ? reinterpret_cast<const T*>(base_ + offset) : nullptr;
  }
  void align() { at_ = (at_ + 255) / 256 * 256; }

  Result<void> put(const TensorView& tensor, char* to) {
    const uint64_t count = tensor.elements();
    const std::string shape = fmt::format("{} numbers", count);
    if (tensor.drawing != nullptr) {
      const TensorDraw& drawing = *tensor.drawing;
      const DrawArgs args{drawing.key, drawing.mean, drawing.gain, count,
                          reinterpret_cast<__nv_bfloat16*>(to)};
      return check(draw_weights(args, nullptr), "draw_weights", shape, count * sizeof(uint16_t));
    }
    constexpr uint64_t kSome = kPiece / sizeof(uint16_t);
    for (uint64_t first = 0; first < count; first += kSome) {
      const uint64_t some = std::min(kSome, count - first);
      Piece& piece = pieces_[turn_++ % std::size(pieces_)];
      cudaError_t error = cudaEventSynchronize(piece.free);
      auto* const staged = piece.memory.as<uint16_t>();
      if (tensor.type == TensorType::kBf16) {
        std::memcpy(staged, tensor.data.data() + first * sizeof(uint16_t), some * sizeof(uint16_t));
      } else {
        rounded_.resize(some);
        read_floats(tensor, first, some, rounded_.data());
        std::transform(rounded_.begin(), rounded_.end(), staged, kernels::to_bf16);
      }
      if (error == cudaSuccess) {
        error = cudaMemcpyAsync(to + first * sizeof(uint16_t), staged, some * sizeof(uint16_t),
                                cudaMemcpyHostToDevice, nullptr);
      }
      if (error == cudaSuccess) error = cudaEventRecord(piece.free, nullptr);
      if (Result<void> ok = check(error, "copy of weights", shape, some * sizeof(uint16_t)); !ok) return ok;
    }
    return {};
  }

  char* base_ = nullptr;
  uint64_t at_ = 0;
  Piece pieces_[2];
  size_t turn_ = 0;
  std::vector<float> rounded_;
  Result<void> result_;
};

Result<std::unique_ptr<DeviceWeights>> DeviceWeights::make(const ModelWeights& weights) {
  std::unique_ptr<DeviceWeights> out(new DeviceWeights(weights.llm()));
  Upload upload;
  static_cast<void>(out->place(weights, &upload));  // counts
  Result<Buffer> memory = Buffer::make(Buffer::Kind::kDevice, upload.bytes(), "weights",
                                       fmt::format("{} parameters", weights.llm().parameters()));
  if (!memory) return tl::unexpected<Error>(memory.error());
  out->memory_ = std::move(*memory);
  if (Result<void> ok = upload.fill_from(out->memory_.as<char>()); !ok)
    return tl::unexpected<Error>(ok.error());
  if (Result<void> ok = out->place(weights, &upload); !ok) return tl::unexpected<Error>(ok.error());
  if (Result<void> ok =
          check(cudaDeviceSynchronize(), "upload of weights", weights.llm().name, out->memory_.bytes());
      !ok)
    return tl::unexpected<Error>(ok.error());
  return out;
}

Result<void> DeviceWeights::place(const ModelWeights& weights, Upload* upload) {
  const uint32_t heads = (llm_.query_heads + 2 * llm_.kv_heads) * llm_.head_dim;
  const uint32_t queries = llm_.query_heads * llm_.head_dim, hidden = llm_.hidden,
                 dequantized = llm_.intermediate;
  embedding_ = upload->bf16({&weights.embedding()});
  final_norm_ = upload->fp32(weights.final_norm());
  lm_head_ = {llm_.tied_embeddings ? embedding_ : upload->bf16({&weights.lm_head()}), nullptr, llm_.vocab,
              hidden};
  for (uint32_t i = 0; i < llm_.layers && upload->result(); ++i) {
    const LayerWeights& from = weights.layer(i);
    DeviceLayer& to = layers_[i];
    to.attention_norm = upload->fp32(from.attention_norm);
    to.mlp_norm = upload->fp32(from.mlp_norm);
    to.q_norm = upload->bf16({&from.q_norm});
    to.k_norm = upload->bf16({&from.k_norm});
    to.qkv = {upload->bf16({&from.q, &from.k, &from.v}),
              upload->bf16({&from.q_bias, &from.k_bias, &from.v_bias}), heads, hidden};
    to.o = {upload->bf16({&from.o}), nullptr, hidden, queries};
    to.o_bias = upload->fp32(from.o_bias);
    to.gate_up = {upload->bf16({&from.gate, &from.up}), upload->bf16({&from.gate_bias, &from.up_bias}),
                  2 * dequantized, hidden};
    to.down = {upload->bf16({&from.down}), nullptr, hidden, dequantized};
    to.down_bias = upload->fp32(from.down_bias);
  }
  return upload->result();
}

}  // namespace kvtwin::cuda
