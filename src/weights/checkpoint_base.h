#pragma once

#include <map>

#include "sftrun/weights/checkpoint.h"

namespace sftrun::weights {

/// Shared by all kinds of checkpoints: list of tensors, look-up by name, sampled fingerprint.
class CheckpointBase : public Checkpoint {
 public:
  const spec::ArchSpec& arch() const override { return arch_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  bool has(const std::string& name) const override { return index_.contains(name); }
  uint64_t stored_bytes(const std::string& name) const override {
    return tensors_[index_of(name)].stored_bytes;
  }
  std::string sampled_fingerprint() const override;

 protected:
  /// Call in the order of `tensor_specs`.
  void add(TensorInfo info, std::span<const std::byte> stored);
  static bool is_aligned(std::span<const std::byte> stored, DType dtype) {
    return reinterpret_cast<uintptr_t>(stored.data()) % static_cast<size_t>(size_of(dtype)) == 0;
  }
  size_t index_of(const std::string& name) const;  ///< @throws DataError with the nearest name

  spec::ArchSpec arch_;
  std::string where_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::span<const std::byte>> stored_;

 private:
  std::map<std::string, size_t> index_;
};

/// The two kinds of checkpoints. @throws DataError
std::unique_ptr<Checkpoint> open_hf_checkpoint(const std::filesystem::path& directory);
std::unique_ptr<Checkpoint> open_gguf_checkpoint(const std::filesystem::path& file);

}  // namespace sftrun::weights
