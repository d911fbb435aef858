#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "model_tensors.h"
#include "sftrun/layers/unit.h"
#include "sftrun/model/decoder.h"
#include "tensor_slot.h"

namespace sftrun::model {

/// Reads the weights of a decoder from a checkpoint or another source, in the form that the options
/// want: dense, as the file stores them, or quantised now; whole or a rank's part.
class WeightReader {
 public:
  /// @param checkpoint null: the source makes the weights
  /// @param file_bytes counts the bytes of files that are read
  WeightReader(const ModelTensors& tensors, const DecoderOptions& options,
               std::shared_ptr<const weights::Checkpoint> checkpoint, const WeightSource& source,
               std::shared_ptr<uint64_t> file_bytes)
      : tensors_(tensors),
        options_(options),
        checkpoint_(std::move(checkpoint)),
        source_(source),
        file_bytes_(std::move(file_bytes)) {}

  /// Fills a frozen tensor.   @param stays the tensor may be a view of a mapped file
  void fill_frozen(const TensorSlot& slot, bool stays);
  /// The initial values of a trained tensor, or this rank's part of them.
  at::Tensor master_values(const std::string& name) const;
  /// Reads a part of a tensor as `dtype`.   @pre there is a checkpoint
  layers::ReadBytes reader_of(const std::string& name, at::ScalarType dtype) const;
  bool has_checkpoint() const { return checkpoint_ != nullptr; }
  /// Tensors that have no memory yet, for `on_unit_loaded`.
  layers::UnreadStorages& unread() { return unread_; }
  /// Bytes of the frozen weights that were filled.
  uint64_t base_bytes() const { return base_bytes_; }

 private:
  /// The matrix in the quantised format of its file; nullopt: it is not kept in one.
  std::optional<kernels::QuantizedMatrix> stored_form(const TensorSlot& slot) const;
  /// The matrix quantised now; nullopt: it stays dense.
  std::optional<kernels::QuantizedMatrix> quantised(const TensorSlot& slot) const;
  /// Whether a frozen tensor is read by `on_unit_loaded`. DoRA and PiSSA need whole ones before, and
  /// what tensor parallelism divides is no range of a file.
  bool leaves_unread(const std::string& name) const;
  /// Reads a part of a stored matrix's tensor: of a view of the mapped file only those pages.
  layers::ReadBytes reader_of(const at::Tensor& stored) const;
  void fill_dense(const TensorSlot& slot, bool stays);
  void fill_quantised(const TensorSlot& slot, const kernels::QuantizedMatrix& matrix,
                      bool is_stored);
  /// The same matrix with tensors that have no memory yet.
  kernels::QuantizedMatrix unread_form(kernels::QuantizedMatrix stored);
  /// Uses what another decoder has read.
  bool takes_shared(const TensorSlot& slot) const;
  void share(const TensorSlot& slot) const;

  const ModelTensors& tensors_;
  const DecoderOptions& options_;
  std::shared_ptr<const weights::Checkpoint> checkpoint_;
  const WeightSource& source_;
  std::shared_ptr<uint64_t> file_bytes_;
  layers::UnreadStorages unread_;
  uint64_t base_bytes_ = 0;
};

}  // namespace sftrun::model
