#include "weight_reader.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "sftrun/model/stored_matrix.h"
#include "sftrun/spec/quantised_modules.h"
#include "to_dtype.h"

namespace sftrun::model {

void WeightReader::fill_frozen(const TensorSlot& slot, bool stays) {
  if (takes_shared(slot)) return;
  const auto stored = slot.quantized == nullptr ? std::nullopt : stored_form(slot);
  if (stored) {
    fill_quantised(slot, *stored, /*is_stored=*/true);
  } else if (const auto made = slot.quantized == nullptr ? std::nullopt : quantised(slot)) {
    fill_quantised(slot, *made, /*is_stored=*/false);
  } else {
    fill_dense(slot, stays);
  }
  share(slot);
}

at::Tensor WeightReader::master_values(const std::string& name) const {
  return tensors_.part_of(name,
                          source_(name, tensors_.spec(name).shape, at::kFloat, /*stays=*/false));
}

std::optional<kernels::QuantizedMatrix> WeightReader::stored_form(const TensorSlot& slot) const {
  const BaseForm& base = options_.base;
  if (!base.keep_stored || !checkpoint_) return std::nullopt;
  const spec::TensorSpec& tensor = tensors_.spec(slot.name);
  const bool is_experts = tensor.role == spec::TensorRole::kExperts;
  const auto packed = checkpoint_->packed(slot.name);
  if (!packed || (base.quant && !is_experts && !is_stored_as(*packed, base.quant->format)))
    return std::nullopt;
  return stored_matrix(*packed, tensor.shape, slot.name, checkpoint_);
}

std::optional<kernels::QuantizedMatrix> WeightReader::quantised(const TensorSlot& slot) const {
  const BaseForm& base = options_.base;
  const spec::TensorSpec& tensor = tensors_.spec(slot.name);
  // Quantised as a whole, so that the values are those of one process.
  const bool is_experts = tensor.role == spec::TensorRole::kExperts;
  const bool is_end =
      tensor.role == spec::TensorRole::kEmbedding || tensor.role == spec::TensorRole::kHead;
  if (!base.quant || (is_end && !base.embeddings.value_or(false))) return std::nullopt;
  const std::vector<int64_t>& shape = tensor.shape;
  if (is_experts &&
      !spec::splits_by_expert(
          shape, quant_info(base.quant->format).has_blocks ? base.quant->block_size : 1))
    return std::nullopt;
  const at::Tensor values = source_(slot.name, shape, at::kFloat, /*stays=*/false);
  return kernels::quantize(values.view({-1, shape.back()}), *base.quant, slot.name);
}

bool WeightReader::leaves_unread(const std::string& name) const {
  return options_.leaves_frozen_unread && checkpoint_ && !options_.lora.dora &&
         !options_.lora.pissa && tensors_.slice_of(name) == nullptr;
}

layers::ReadBytes WeightReader::reader_of(const std::string& name, at::ScalarType dtype) const {
  const int64_t numel = c10::multiply_integers(tensors_.spec(name).shape);
  return [checkpoint = checkpoint_, count = file_bytes_, name, numel, dtype = to_dtype(dtype)](
             int64_t begin, std::span<std::byte> to) {
    const int64_t size = size_of(dtype), first = begin / size,
                  values = static_cast<int64_t>(to.size()) / size;
    if (const auto read = checkpoint->read_range(name, dtype, first, values, to.data())) {
      *count += *read;
      return;
    }
    std::vector<std::byte> whole(static_cast<size_t>(numel * size));
    checkpoint->read(name, dtype, whole.data());
    std::memcpy(to.data(), whole.data() + begin, to.size());
    *count += checkpoint->stored_bytes(name);
  };
}

layers::ReadBytes WeightReader::reader_of(const at::Tensor& stored) const {
  // Copies, made where a file has another order, are resizable; views of files are not.
  const bool is_copy = stored.storage().resizable();
  if (is_copy) *file_bytes_ += stored.nbytes();
  return [stored, is_copy, count = file_bytes_](int64_t begin, std::span<std::byte> to) {
    std::memcpy(to.data(), static_cast<const std::byte*>(stored.const_data_ptr()) + begin,
                to.size());
    if (!is_copy) *count += to.size();
  };
}

void WeightReader::fill_dense(const TensorSlot& slot, bool stays) {
  const std::vector<int64_t>& shape = tensors_.spec(slot.name).shape;
  if (leaves_unread(slot.name)) {
    *slot.weight = layers::without_memory(shape, slot.dtype, options_.device);
    unread_[slot.weight->storage().unsafeGetStorageImpl()] = reader_of(slot.name, slot.dtype);
  } else {
    *slot.weight = tensors_.part_of(slot.name, source_(slot.name, shape, slot.dtype, stays))
                       .to(options_.device);
  }
  base_bytes_ += slot.weight->nbytes();
}

kernels::QuantizedMatrix WeightReader::unread_form(kernels::QuantizedMatrix stored) {
  const at::Device device = options_.device;
  for (at::Tensor* part : stored.tensor_members()) {
    at::Tensor tensor = layers::without_memory(part->sizes(), part->scalar_type(), device);
    unread_[tensor.storage().unsafeGetStorageImpl()] = reader_of(*part);
    *part = std::move(tensor);
  }
  if (stored.is_nested() && !device.is_cpu())
    stored.nested_values = kernels::nested_map().to(device);
  return stored;
}

void WeightReader::fill_quantised(const TensorSlot& slot, const kernels::QuantizedMatrix& matrix,
                                  bool is_stored) {
  if (is_stored && leaves_unread(slot.name)) {
    *slot.quantized = unread_form(matrix);
  } else {
    *slot.quantized = tensors_.part_of(slot.name, matrix).to(options_.device);
    if (is_stored) *file_bytes_ += matrix.nbytes();
  }
  base_bytes_ += (*slot.quantized)->nbytes();
}

bool WeightReader::takes_shared(const TensorSlot& slot) const {
  const SharedWeights* shared = slot.may_be_shared ? options_.shared_weights.get() : nullptr;
  if (shared == nullptr) return false;
  if (const auto dense = shared->dense.find(slot.name); dense != shared->dense.end()) {
    *slot.weight = dense->second;
    return true;
  }
  const auto quantized = shared->quantized.find(slot.name);
  if (quantized == shared->quantized.end()) return false;
  *slot.quantized = quantized->second;
  return true;
}

void WeightReader::share(const TensorSlot& slot) const {
  SharedWeights* shared = slot.may_be_shared ? options_.shared_weights.get() : nullptr;
  if (shared == nullptr) return;
  if (slot.quantized != nullptr && slot.quantized->has_value())
    shared->quantized.emplace(slot.name, **slot.quantized);
  else
    shared->dense.emplace(slot.name, *slot.weight);
}

}  // namespace sftrun::model
