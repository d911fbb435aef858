#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <map>
#include <utility>

#include "sftrun/core/rng.h"
#include "sftrun/model/decoder.h"
#include "to_dtype.h"

/// Where a decoder's weights come from: a checkpoint, or random numbers.
namespace sftrun::model {
std::unique_ptr<Decoder> Decoder::load(std::shared_ptr<const weights::Checkpoint> checkpoint,
                                       const DecoderOptions& options) {
  if (options.with_vision) weights::require_image_side(*checkpoint);
  std::unique_ptr<Decoder> decoder(new Decoder(checkpoint->arch(), options));
  decoder->checkpoint_ = checkpoint;
  decoder->build([&](const std::string& name, const std::vector<int64_t>& shape,
                     at::ScalarType dtype, bool stays) {
    // Without conversion, use the mapped file in place: pages are read when first touched and
    // shared between processes.
    const auto mapped = stays ? checkpoint->mapped(name, to_dtype(dtype)) : std::nullopt;
    *decoder->file_bytes_ += checkpoint->stored_bytes(name);
    if (mapped) {
      auto* address = const_cast<std::byte*>(mapped->data());
      return at::from_blob(
          address, shape, [checkpoint](void*) {}, at::TensorOptions().dtype(dtype));
    }
    at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(dtype));
    checkpoint->read(name, to_dtype(dtype), tensor.data_ptr());
    return tensor;
  });
  return decoder;
}

namespace {

constexpr double kWidth = 0.0692820323;  // 0.02 * sqrt(12)

/// Uniform with standard deviation 0.02. Each piece has its own random stream, so that the values
/// do not depend on the number of threads.
void fill_random(at::Tensor& tensor, uint64_t seed, uint64_t number) {
  constexpr int64_t kPiece = 1 << 16;
  constexpr int kPieceBits = 32;
  float* data = tensor.data_ptr<float>();
  const int64_t pieces = (tensor.numel() + kPiece - 1) / kPiece;
  at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      RandomStream stream(seed, number << kPieceBits | static_cast<uint64_t>(piece));
      const int64_t last = std::min(tensor.numel(), (piece + 1) * kPiece);
      for (int64_t i = piece * kPiece; i < last; ++i)
        data[i] = static_cast<float>((stream.next_unit() - 0.5) * kWidth);
    }
  });
}

/// The same distribution, other values, generated on the device, which is faster. Tensors that are
/// quantised or trained are requested in fp32 on the host instead.
at::Tensor random_on_card(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(device))
      .uniform_(-kWidth / 2, kWidth / 2);
}

}  // namespace

std::unique_ptr<Decoder> Decoder::random(const spec::ArchSpec& arch,
                                         const DecoderOptions& options) {
  std::unique_ptr<Decoder> decoder(new Decoder(arch, options));
  std::map<std::string, float> norms;  // by name the weight that multiplies by 1
  for (const spec::TensorSpec& tensor : spec::tensor_specs(arch))
    if (tensor.role == TensorRole::kNorm)
      norms[tensor.name] = arch.norm_adds_one && tensor.adds_one ? 0.0F : 1.0F;
  uint64_t number = 0;
  decoder->build([&](const std::string& name, const std::vector<int64_t>& shape,
                     at::ScalarType dtype, bool /*stays*/) {
    ++number;
    const auto norm = norms.find(name);
    if (options.device.is_cuda() && dtype != at::kFloat && norm == norms.end())
      return random_on_card(shape, dtype, options.device);
    at::Tensor tensor = at::empty(shape, at::kFloat);
    if (norm != norms.end()) return tensor.fill_(norm->second).to(dtype);
    fill_random(tensor, options.seed, number);
    return tensor.to(dtype);
  });
  return decoder;
}

}  // namespace sftrun::model
