#pragma once

#include <memory>
#include <utility>

#include "sftrun/weights/checkpoint.h"

namespace sftrun::weights {

/// A model that is another one but for what a class below changes.
class ForwardingCheckpoint : public Checkpoint {
 public:
  explicit ForwardingCheckpoint(std::shared_ptr<const Checkpoint> base)
      : base_(std::move(base)), arch_(base_->arch()), tensors_(base_->tensors()) {}

  const spec::ArchSpec& arch() const override { return arch_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  bool has(const std::string& name) const override { return base_->has(name); }
  uint64_t stored_bytes(const std::string& name) const override {
    return base_->stored_bytes(name);
  }
  void read(const std::string& name, DType dtype, void* destination) const override {
    base_->read(name, dtype, destination);
  }
  void read_part(const std::string& name, size_t part, DType dtype,
                 void* destination) const override {
    base_->read_part(name, part, dtype, destination);
  }
  std::optional<uint64_t> read_range(const std::string& name, DType dtype, int64_t first,
                                     int64_t count, void* destination) const override {
    return base_->read_range(name, dtype, first, count, destination);
  }
  std::optional<std::span<const std::byte>> mapped(const std::string& name,
                                                   DType dtype) const override {
    return base_->mapped(name, dtype);
  }
  std::optional<PackedMatrix> packed(const std::string& name) const override {
    return base_->packed(name);
  }
  std::vector<WeightFile> weight_files() const override { return base_->weight_files(); }
  nlohmann::ordered_json configuration() const override { return base_->configuration(); }
  std::string sampled_fingerprint() const override { return base_->sampled_fingerprint(); }
  tokenizer::Tokenizer tokenizer() const override { return base_->tokenizer(); }
  std::optional<std::string> chat_template() const override { return base_->chat_template(); }
  templates::RenderOptions render_defaults() const override { return base_->render_defaults(); }

 protected:
  std::shared_ptr<const Checkpoint> base_;
  spec::ArchSpec arch_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace sftrun::weights
