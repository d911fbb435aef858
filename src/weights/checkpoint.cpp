#include "sftrun/weights/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "checkpoint_base.h"
#include "sftrun/core/error.h"
#include "sftrun/core/finite.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/vision_tensors.h"
#include "shape_math.h"
#include "tensor_check.h"

namespace sftrun::weights {
namespace fs = std::filesystem;

int64_t TensorInfo::numel() const {
  return checked_numel(shape).value_or(0);
}

std::unique_ptr<Checkpoint> Checkpoint::open(const fs::path& path) {
  std::error_code code;
  if (fs::is_directory(path, code)) return open_hf_checkpoint(path);
  if (!fs::exists(path, code)) {
    throw DataError("no such model", path.string(),
                    "give a directory in Hugging Face layout or a .gguf file");
  }
  if (path.extension() == ".gguf") return open_gguf_checkpoint(path);
  throw DataError("neither a directory nor a .gguf file", path.string(),
                  path.extension() == ".safetensors"
                      ? "give the directory that contains it and its config.json"
                      : "give a directory in Hugging Face layout or a .gguf file");
}

void CheckpointBase::add(TensorInfo info, std::span<const std::byte> stored) {
  index_[info.name] = tensors_.size();
  tensors_.push_back(std::move(info));
  stored_.push_back(stored);
}

size_t CheckpointBase::index_of(const std::string& name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return found->second;
  std::vector<std::string> names;
  for (const TensorInfo& tensor : tensors_) names.push_back(tensor.name);
  const std::string near = nearest(name, names);
  throw DataError(fmt::format("no tensor `{}`", name), where_,
                  near.empty() ? "" : fmt::format("did you mean `{}`?", near));
}

std::string CheckpointBase::sampled_fingerprint() const {
  constexpr size_t kSample = 4096;
  Fingerprint print;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorInfo& info = tensors_[i];
    const std::vector<int64_t>& shape = info.printed_shape();
    print.add(info.printed_name()).add(info.format).add(info.stored_bytes).add(shape.size());
    for (const int64_t size : shape) print.add(static_cast<uint64_t>(size));
    const std::span<const std::byte> bytes = stored_[i];
    const size_t sample = std::min(kSample, bytes.size());
    for (const size_t begin : {size_t{0}, (bytes.size() - sample) / 2, bytes.size() - sample}) {
      print.add(bytes.data() + begin, sample);
    }
  }
  return print.hex();
}

void require_image_side(const Checkpoint& checkpoint) {
  const spec::ArchSpec& arch = checkpoint.arch();
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const spec::TensorSpec& spec : spec::vision_tensor_specs(*arch.vision, arch.hidden_size))
    if (spec::is_read(*arch.vision, spec)) shapes[spec.name] = spec.shape;
  for (const TensorInfo& info : checkpoint.tensors()) {
    const auto expected = shapes.find(info.name);
    if (expected != shapes.end() && expected->second != info.shape)
      refuse_shape({info.name, info.shape, checkpoint.weight_files().front().path.string()},
                   expected->second);
  }
}

std::set<std::string> block_kinds(const Checkpoint& checkpoint) {
  std::set<std::string> kinds;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const auto packed = checkpoint.packed(tensor.name);
    if (!packed) continue;
    kinds.insert("stored");
    const CodedMatrix* coded = first_coded(*packed);
    if (coded != nullptr && !quant_info(coded->format).is_made)
      kinds.insert(std::string(quant_info(coded->format).name));
    const auto* blocks = std::get_if<GgmlBlocks>(&*packed);
    if (blocks != nullptr) kinds.insert("gguf");
    const bool is_mxfp4 =
        blocks != nullptr && blocks->type.id == static_cast<uint32_t>(GgmlType::kMxfp4);
    if (is_mxfp4 || std::holds_alternative<Mxfp4Experts>(*packed)) kinds.insert("mxfp4");
  }
  return kinds;
}

int64_t values_per_block(const PackedMatrix& matrix) {
  constexpr int64_t kMxfp4Block = 32;
  if (const auto* blocks = std::get_if<GgmlBlocks>(&matrix)) return blocks->type.block_size;
  const CodedMatrix* coded = first_coded(matrix);
  if (coded == nullptr) return kMxfp4Block;
  if (coded->tile > 0) return kFp8LeastBlock;
  if (coded->group > 0) return int4_columns_together(coded->group, coded->columns);
  constexpr int kByte = 8;  // bits; codes that share one cannot be separated
  return coded->block_size > 0 ? coded->block_size : kByte / quant_info(coded->format).bits;
}

std::vector<double> norm_squares(const Checkpoint& checkpoint) {
  std::vector<double> sums;
  for (const spec::TensorSpec& spec : spec::tensor_specs(checkpoint.arch())) {
    if (spec.role != spec::TensorRole::kNorm) continue;
    std::vector<uint16_t> values(static_cast<size_t>(spec.numel()));
    checkpoint.read(spec.name, DType::kBF16, values.data());
    double& sum = sums.emplace_back();
    for (const uint16_t value : values) {
      const double wide = bf16_to_f32(value);
      sum += wide * wide;
    }
  }
  return sums;
}

bool are_norms_of_one_model(const std::vector<double>& a, const std::vector<double>& b) {
  // For conversion by way of fp16, and Gemma's norms, which GGUF stores plus one
  constexpr double kRounding = 1e-5;
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return std::abs(x - y) <= kRounding * std::max(std::abs(x), std::abs(y));
  });
}

std::string dense_layout(const Checkpoint& checkpoint) {
  Fingerprint print;
  for (const TensorInfo& info : checkpoint.tensors()) {
    if (checkpoint.packed(info.name)) return {};
    print.add(info.printed_name()).add(info.format).add(info.stored_bytes);
  }
  return print.hex();
}

void require_finite(const Checkpoint& checkpoint, const fs::path& path) {
  std::vector<float> values;
  for (const TensorInfo& info : checkpoint.tensors()) {
    values.resize(static_cast<size_t>(info.numel()));
    checkpoint.read(info.name, DType::kF32, values.data());
    if (all_finite(values)) continue;
    throw DataError(fmt::format("tensor `{}` of the base has NaN or infinite values", info.name),
                    path.string(), "download or copy the model again");
  }
}

}  // namespace sftrun::weights
