#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "sftrun/kernels/graph.h"
#include "sftrun/model/decoder.h"

namespace sftrun::model {

enum class GraphUse : uint8_t {
  kOff,
  kWhereItPays,  ///< of micro-batches so small that the host is slower than the device
  kAlways
};

/// The forward and backward pass of micro-batches as CUDA graphs: one for each `BatchSizes` that is
/// met twice, launched where it is met again (docs/decisions/0022-cuda-graphs.md). What cannot be
/// captured is queued operation by operation, and the log says why. Not thread-safe.
class PassGraphs {
 public:
  struct Options {
    GraphUse use = GraphUse::kWhereItPays;
    bool has_aux_loss = false;
    /// Gradients are reduced while the backward pass goes on, which a graph would end.
    bool reduces_beside = false;
  };
  /// @param decoder must outlive this
  PassGraphs(Decoder& decoder, const Options& options);
  PassGraphs(const PassGraphs&) = delete;
  PassGraphs& operator=(const PassGraphs&) = delete;
  ~PassGraphs();

  /// What `prepare_batch` is to fill the batch up to; nullopt: it stays as it is.
  std::optional<BatchSizes> sizes_for(const data::Batch& batch) const;
  /// `Decoder::forward_backward`. Where a graph is launched all groups are done after it.
  /// @param grad_scale 1 where the batch has sizes
  at::Tensor forward_backward(const PackedBatch& batch, double grad_scale,
                              const Decoder::GroupDone& done, Decoder::AuxLoss* aux);
  /// The same of a batch that is not prepared yet. On CUDA the device reads `grad_scale`.
  at::Tensor forward_backward(const data::Batch& batch, const Randomness& randomness,
                              bool is_pinned, double grad_scale, const Decoder::GroupDone& done,
                              Decoder::AuxLoss* aux = nullptr);
  /// Of graphs that were captured.
  int64_t size() const;
  /// One line about what the graphs were used for; none where there was no graph.
  void log_use() const;

 private:
  struct Pass {
    int64_t met = 0;
    std::unique_ptr<kernels::Graph> graph;
    PackedBatch batch;  // what the graph reads
    at::Tensor loss;    // what it writes
  };
  /// RoPE that goes by a document's length may stage more for batches of the same sizes.
  using Shape = std::pair<BatchSizes, size_t>;  // and bytes that are staged
  bool is_ready(Pass& pass, const PackedBatch& batch);
  bool is_full() const;
  void clear();
  /// @return why it failed; empty: it did not
  std::string capture(Pass& pass, const PackedBatch& batch);
  const kernels::Graph* any_graph() const;
  void turn_off(const std::string& why);

  Decoder& decoder_;
  int64_t most_tokens_ = 0;  // of a batch that is worth a graph; 0: none is
  std::map<Shape, Pass> passes_;
  int64_t num_passes_ = 0, num_launched_ = 0;
};

}  // namespace sftrun::model
