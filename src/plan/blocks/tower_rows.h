#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blocks/block.h"

/// What the rows of the image side count: the operations of src/layers/tower, whose autograd graph keeps what their gradients read.
namespace sftrun::plan {

/// Bytes of tensors of a micro-batch's images in the tower.
class TowerRows {
 public:
  explicit TowerRows(const StepContext& step);

  const spec::VisionSpec& spec() const { return spec_; }
  int64_t patches() const { return step_.shape.images.patches; }
  int64_t rows() const { return patches() + class_tokens_; }
  int64_t features() const;

  /// [count, columns] in the compute dtype, and in fp32.
  int64_t bytes(int64_t count, int64_t columns) const {
    return count * columns * step_.shape.element_bytes;
  }
  static int64_t fp32_bytes(int64_t count, int64_t columns) { return count * columns * kFp32; }
  /// Hidden states.
  int64_t hidden() const { return bytes(rows(), spec_.hidden_size); }
  /// [rows, heads * head_dim]
  int64_t heads() const { return bytes(rows(), spec_.num_heads * spec_.head_dim); }
  /// What a rounded copy of fp32 values takes beside them: 0 in fp32.
  int64_t rounded(int64_t bytes) const { return step_.shape.element_bytes == kFp32 ? 0 : bytes; }

  /// Whether gradients of the linear's weights or adapter read its input.
  bool trains(const std::string& module) const;
  /// Inner columns of an adapter.
  int64_t low_rank(const std::string& module, int64_t count) const {
    return bytes(count, step_.tower_training.rank(module));
  }
  /// Gradients of a linear that trains in full, before they are added to the gradients: of the matrix; on a CPU beside the
  /// transposed gradient of `count` outputs in fp32 (oneDNN), or of the bias, which is a sum of rounded outputs in fp32.
  int64_t matrix_gradient(const std::string& module, const spec::TowerLinear& linear,
                          int64_t count) const;
  /// The gradient of a norm over `count` rows whose weight trains: RMS norms sum a product in fp32, of rounded values in fp32.
  int64_t norm_gradient(const spec::TowerNorm& norm, int64_t count) const;
  /// A quantised matrix is unpacked for its product on a GPU.
  int64_t unpacked(const spec::TowerLinear& linear) const;

 private:
  const StepContext& step_;
  const spec::VisionSpec& spec_;
  int64_t class_tokens_;
};

/// Operations one after the other: what their gradients read is kept, and free after them in the backward pass.
class TowerChain {
 public:
  /// @param is_kept the input is kept already
  TowerChain(int64_t input_bytes, bool is_kept) : current_(input_bytes), is_kept_(is_kept) {}
  /// @param reads_input its gradient reads its input   @param beside bytes beside the gradients of input and output
  void apply(int64_t output_bytes, bool reads_input, int64_t beside = 0, int64_t kept = 0);
  int64_t current() const { return current_; }
  int64_t kept() const { return kept_; }
  /// The peak of the backward pass beside what is kept and the gradient of the last output, which stays.
  int64_t in_backward() const;

 private:
  struct Operation {
    int64_t input, beside, kept;
  };
  std::vector<Operation> operations_;
  int64_t current_, kept_ = 0;
  bool is_kept_;
};

}  // namespace sftrun::plan
