#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sftrun/layers/dequant_prefetcher.h"
#include "sftrun/layers/joint_linears.h"
#include "sftrun/layers/layer.h"
#include "sftrun/layers/parameter.h"

namespace sftrun::model {

struct DecoderOptions;

/// Joint linears: products that are computed as one on CUDA, with the copies of adapters beside their
/// weights, and the unpacking of quantised ones ahead of use. Elsewhere there are none.
class DecoderJoints {
 public:
  /// @param options of the decoder, which has all three
  DecoderJoints(const DecoderOptions& options, const layers::ParameterStore& store,
                std::vector<layers::Layer>& layers);

  /// Joins linears with the same input where only attention or the gated activation reads their
  /// outputs, and makes adapters part of the product.
  /// @param unread weights without memory   @pre the unit is loaded
  void join_unit(int64_t unit, layers::UnreadStorages& unread);
  /// Updates them after a change of the adapters, and starts unpacking ahead. Must be called before
  /// layers run one by one (generation).
  /// @param hooks that this pass calls; null: none, or units stay in memory while it runs
  void prepare(layers::DequantPrefetcher::Pass pass = layers::DequantPrefetcher::Pass::kForward,
               layers::UnitHooks* hooks = nullptr);
  /// The first part of `prepare`, which a captured graph does not contain.
  void refresh();
  /// Must be called after `UnitHooks::before` and before `UnitHooks::after`. Where the memory of
  /// units is released, the copies of the adapters exist between these calls.
  void unit_arrived(int64_t unit);
  void unit_leaves(int64_t unit);
  /// Makes the current stream wait for matrices unpacked ahead: before a captured pass and at its
  /// end.
  void join_prefetch();
  /// Call after the capture of a pass failed.
  void forget_prefetch();

 private:
  void join(layers::JointLinears& joint, const std::vector<layers::Linear*>& linears, int64_t unit,
            layers::UnreadStorages& unread);

  const DecoderOptions& options_;
  const layers::ParameterStore& store_;
  std::vector<layers::Layer>& layers_;
  layers::JointAdapters adapters_;
  /// Adapters' copies in the joint linears of a unit, if buffers are per unit.
  struct UnitJoints {
    layers::JointAdapters beside_weights, in_memory;
    layers::FrozenStorage memory;  // of those whose weights are quantised
  };
  std::map<int64_t, UnitJoints> units_;
  std::unique_ptr<layers::DequantPrefetcher> prefetcher_;  // null: none is quantised
  uint64_t version_ = 0;  // `store_.version()` when they were last updated
};

}  // namespace sftrun::model
