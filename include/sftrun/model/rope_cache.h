#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sftrun/layers/batch_context.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::model {

/// Angles of a batch's T tokens: rows of a RoPE table, or the cosines and sines themselves.
/// Computed on the host and sent with the batch.
struct RopeRows {
  /// [T] rows of the table; empty: the row is the token's position.
  std::vector<int64_t> rows;
  /// [T * rotary_dim / 2], replace the table if angles depend on the exact document length (dynamic
  /// NTK); else empty.
  std::vector<float> cos, sin;
};
/// The same on the device; undefined where empty.
struct DeviceRopeRows {
  at::Tensor rows;      ///< [T] int64
  at::Tensor cos, sin;  ///< [T * rotary_dim / 2] fp32
};

/// Cosines and sines of rotary embeddings by position, computed on the host, grown on demand and
/// cached on the device. LongRoPE has two tables: for short and for long documents.
class RopeCache {
 public:
  explicit RopeCache(const std::vector<spec::RopeSpec>& ropes);

  /// Grows the tables to the documents' lengths and to `positions`.
  /// @param positions on several axes; may exceed the documents' lengths
  /// @return one entry per RoPE variant
  std::vector<RopeRows> rows_of(const std::vector<int32_t>& cu_seqlens,
                                const std::vector<int32_t>& positions = {});
  /// @param positions [T] int64 of each token in its document, or [axes, T] (M-RoPE), on the device
  /// @param rows result of `rows_of`, on the device
  /// @param is_pinned CUDA: copy a table that has grown asynchronously from page-locked memory
  std::vector<kernels::RopeAngles> angles(const at::Tensor& positions,
                                          const std::vector<DeviceRopeRows>& rows, bool is_pinned);
  /// Sequence length beyond which all positions get other angles (LongRoPE), which invalidates the
  /// key/value cache; 0: none.
  int64_t switches_after() const;
  /// Fills context.ropes for generation: one position per sequence, its last.
  void fill_positions(layers::BatchContext& context, const std::vector<int64_t>& positions,
                      at::Device device) const;

 private:
  /// Host table of angles for positions from 0, valid for a range of document lengths.
  struct Variant {
    spec::RopeTable frequencies;
    kernels::RopeAngles angles;  // [positions, rotary_dim / 2]
    int64_t positions() const { return angles.cos.size(0); }
    /// @return whether the table was shorter and has grown
    bool grow(int64_t positions);
  };
  /// One RoPE variant of the model. The device table is the concatenation of its `variants`.
  struct Table {
    explicit Table(const spec::RopeSpec& rope_spec);
    spec::RopeSpec rope;
    std::vector<Variant> variants;  // LongRoPE: short, then long documents; else one
    kernels::RopeAngles on_device;  // undefined after a variant has grown
    at::Tensor axes_on_device;  // [1, 1, rotary_dim / 2] int64: M-RoPE, the axis of each frequency

    int64_t variant_of(int64_t length) const;
    RopeRows rows_of(const std::vector<int32_t>& cu_seqlens, int64_t num_positions);
    kernels::RopeAngles angles_of_axes(const at::Tensor& positions, bool is_pinned);
    RopeRows own_angles(const std::vector<int32_t>& cu_seqlens) const;
    const kernels::RopeAngles& on(at::Device device, bool is_pinned);
    const at::Tensor& axes_on(at::Device device, bool is_pinned);
  };
  std::vector<Table> tables_;
};

}  // namespace sftrun::model
