#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "sftrun/kernels/graph.h"
#include "sftrun/model/stage.h"

namespace sftrun::model {

enum class GraphUse : uint8_t {
  kOff,
  kWhereItPays,  ///< for micro-batches so small that the host limits the speed
  kAlways
};

/// CUDA graphs of the forward and backward pass of micro-batches. A graph is captured when a
/// `BatchSizes` occurs for the second time and launched from then on
/// (docs/decisions/0022-cuda-graphs.md). Work that cannot be captured is launched kernel by kernel,
/// and the log says why. Not thread-safe.
class PassGraphs {
 public:
  struct Options {
    GraphUse use = GraphUse::kWhereItPays;
    bool has_aux_loss = false;
    bool needs_two_passes = false;  ///< gradients depend on a first pass (`Objective::needs_sums`)
    bool has_teacher = false;       ///< of micro-batches
    /// Ranks communicate during a pass, which a graph does not allow.
    bool communicates_in_passes = false;
  };
  /// @param stage of all units
  PassGraphs(const Stage& stage, const Options& options);
  PassGraphs(const PassGraphs&) = delete;
  PassGraphs& operator=(const PassGraphs&) = delete;
  ~PassGraphs();

  /// Sizes that `prepare_batch` must pad the batch to; nullopt: no padding.
  std::optional<BatchSizes> sizes_for(const data::Batch& batch) const;
  /// See `Stage::forward_backward`. After a graph launch `UnitHooks::gradients_ready` is called for
  /// all units.   @pre options.grad_scale is 1 if the batch has sizes
  at::Tensor forward_backward(const PackedBatch& batch, const PassOptions& options);
  /// The same for a batch that is not prepared. On CUDA `grad_scale` is passed on the device.
  at::Tensor forward_backward(const data::Batch& batch, const Randomness& randomness,
                              bool is_pinned, PassOptions options);
  /// Number of captured graphs.
  int64_t size() const;
  /// Logs one line about the use of graphs; nothing if none was launched.
  void log_use() const;

 private:
  struct Pass {
    int64_t met = 0;
    std::unique_ptr<kernels::Graph> graph;
    PackedBatch batch;  // input of the graph
    at::Tensor loss;    // output of the graph
  };
  /// RoPE variants that depend on document length may stage different bytes for the same sizes.
  using Shape = std::pair<BatchSizes, size_t>;  // sizes, staged bytes
  bool is_ready(Pass& pass, const PackedBatch& batch);
  bool is_full() const;
  void clear();
  /// @return reason of the failure; empty on success
  std::string capture(Pass& pass, const PackedBatch& batch);
  const kernels::Graph* any_graph() const;
  void turn_off(const std::string& why);

  Decoder& decoder_;
  Stage stage_;
  int64_t max_tokens_ = 0;  // largest batch that uses a graph; 0: none does
  std::map<Shape, Pass> passes_;
  int64_t num_passes_ = 0, num_launched_ = 0;
};

}  // namespace sftrun::model
