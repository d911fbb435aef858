#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sftrun/kernels/ops.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::model {

/// Which angles a batch's T tokens take from a rope's table, made on the host and sent with the
/// batch.
struct RopeRows {
  /// [T] rows of the table; empty: each token's position is its row.
  std::vector<int64_t> rows;
  /// [T * rotary_dim / 2], in place of the table where a document's angles are of its very length;
  /// else empty.
  std::vector<float> cos, sin;
};
/// The same on the device; undefined where empty.
struct DeviceRopeRows {
  at::Tensor rows;      ///< [T] int64
  at::Tensor cos, sin;  ///< [T * rotary_dim / 2] fp32
};

/// Cosines and sines of rotary embeddings by position. Computed once on the host, grown on demand
/// and kept on the device, for LongRoPE both of short documents and of long ones.
class RopeCache {
 public:
  explicit RopeCache(const std::vector<spec::RopeSpec>& ropes);

  /// Grows the tables to the documents' lengths. @return of each rope
  std::vector<RopeRows> rows_of(const std::vector<int32_t>& cu_seqlens);
  /// @param positions [T] int64 of each token in its document, on the device
  /// @param rows what `rows_of` returned, on the device
  /// @param is_pinned of CUDA: a table that has grown is copied from page-locked memory, and the
  /// host does not wait
  std::vector<kernels::RopeAngles> angles(const at::Tensor& positions,
                                          const std::vector<DeviceRopeRows>& rows, bool is_pinned);
  /// The length of a sequence past which all its positions turn otherwise (LongRoPE), so that what
  /// was computed of it is void; 0: there is none.
  int64_t switches_after() const;
  /// Fills context.ropes for single positions, each the last of its sequence so far (generation).
  void fill_positions(kernels::BatchContext& context, const std::vector<int64_t>& positions,
                      at::Device device) const;

 private:
  /// Angles of positions from 0 on, on the host, for documents of some lengths.
  struct Variant {
    spec::RopeTable frequencies;
    kernels::RopeAngles angles;  // [positions, rotary_dim / 2]
    int64_t positions() const { return angles.cos.size(0); }
    /// Whether it had fewer.
    bool grow(int64_t positions);
  };
  /// Of one rope. The table's rows are the variants' one after the other.
  struct Table {
    explicit Table(const spec::RopeSpec& of);
    spec::RopeSpec rope;
    std::vector<Variant> variants;  // LongRoPE: of short documents, of long ones; else one
    kernels::RopeAngles on_device;  // undefined when a variant has grown

    int64_t variant_of(int64_t length) const;
    RopeRows rows_of(const std::vector<int32_t>& cu_seqlens);
    RopeRows own_angles(const std::vector<int32_t>& cu_seqlens) const;
    const kernels::RopeAngles& on(at::Device device, bool is_pinned);
  };
  std::vector<Table> tables_;
};

}  // namespace sftrun::model
