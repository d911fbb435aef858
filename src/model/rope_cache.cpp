#include "sftrun/model/rope_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "sftrun/core/error.h"
#include "staging.h"

namespace sftrun::model {
namespace {

constexpr int64_t kOwn = -1;  // variant of a document whose exact length determines its angles

/// Angles as transformers computes them: fp32 product of position and inverse frequency, then cos
/// and sin times the scaling.
void write_angles(const spec::RopeTable& table, int64_t position, float* cos, float* sin) {
  for (size_t i = 0; i < table.inv_freq.size(); ++i) {
    const float angle = static_cast<float>(position) * table.inv_freq[i];
    cos[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * table.attention_scaling;
    sin[i] = static_cast<float>(std::sin(static_cast<double>(angle))) * table.attention_scaling;
  }
}

/// Uninitialised angles of `rows` positions.
kernels::RopeAngles angles_for(int64_t rows, int64_t half) {
  return {at::empty({rows, half}, at::kFloat), at::empty({rows, half}, at::kFloat)};
}

void write_row(kernels::RopeAngles& angles, int64_t row, const spec::RopeTable& table,
               int64_t position) {
  const int64_t half = angles.cos.size(1);
  write_angles(table, position, angles.cos.data_ptr<float>() + row * half,
               angles.sin.data_ptr<float>() + row * half);
}

/// Largest document length that uses the first table, for RoPE types that depend on length.
int64_t last_short_length(const spec::RopeSpec& rope) {
  const int64_t original = rope.original_max_position_embeddings;
  const bool has_original = rope.type == spec::RopeType::kLongRope && original > 0;
  return has_original ? original : rope.max_position_embeddings;
}

/// Calls body(begin, length) for each document.
template <typename Body>
void for_documents(const std::vector<int32_t>& cu_seqlens, const Body& body) {
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i)
    body(static_cast<int64_t>(cu_seqlens[i]),
         static_cast<int64_t>(cu_seqlens[i + 1] - cu_seqlens[i]));
}

at::Tensor joined(const std::vector<at::Tensor>& parts) {
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

}  // namespace

bool RopeCache::Variant::grow(int64_t positions) {
  const int64_t have = this->positions();
  if (positions <= have) return false;
  const int64_t size = std::max(positions, 2 * have);
  kernels::RopeAngles larger = angles_for(size, angles.cos.size(1));
  larger.cos.narrow(0, 0, have).copy_(angles.cos);
  larger.sin.narrow(0, 0, have).copy_(angles.sin);
  for (int64_t position = have; position < size; ++position)
    write_row(larger, position, frequencies, position);
  angles = larger;
  return true;
}

RopeCache::Table::Table(const spec::RopeSpec& rope_spec) : rope(rope_spec) {
  const int64_t last_short = last_short_length(rope);
  std::vector<int64_t> lengths = {last_short};
  if (rope.type == spec::RopeType::kLongRope) lengths.push_back(last_short + 1);
  for (const int64_t length : lengths)
    variants.push_back({spec::rope_table(rope, length), angles_for(0, rope.rotary_dim / 2)});
}

int64_t RopeCache::Table::variant_of(int64_t length) const {
  if (!rope.by_length() || length <= last_short_length(rope)) return 0;
  return rope.type == spec::RopeType::kLongRope ? 1 : kOwn;
}

RopeRows RopeCache::Table::rows_of(const std::vector<int32_t>& cu_seqlens, int64_t num_positions) {
  bool has_own = false, has_long = false;
  if (num_positions > 0) {
    SFTRUN_CHECK(!rope.by_length());  // no model has both
    if (variants[0].grow(num_positions)) on_device = {};
  }
  for_documents(cu_seqlens, [&](int64_t /*begin*/, int64_t length) {
    const int64_t variant = variant_of(length);
    has_own |= variant == kOwn, has_long |= variant > 0;
    if (variant != kOwn && variants[static_cast<size_t>(variant)].grow(length)) on_device = {};
  });
  if (has_own) return own_angles(cu_seqlens);
  RopeRows result;
  if (!has_long) return result;
  result.rows.resize(static_cast<size_t>(cu_seqlens.back()));
  for_documents(cu_seqlens, [&](int64_t begin, int64_t length) {
    const int64_t first = variant_of(length) == 0 ? 0 : variants[0].positions();
    for (int64_t p = 0; p < length; ++p) result.rows[static_cast<size_t>(begin + p)] = first + p;
  });
  return result;
}

/// Dynamic NTK: each document longer than the model's context has its own frequencies.
RopeRows RopeCache::Table::own_angles(const std::vector<int32_t>& cu_seqlens) const {
  const int64_t half = rope.rotary_dim / 2;
  RopeRows result;
  result.cos.resize(static_cast<size_t>(cu_seqlens.back() * half));
  result.sin.resize(result.cos.size());
  for_documents(cu_seqlens, [&](int64_t begin, int64_t length) {
    float *cos = result.cos.data() + begin * half, *sin = result.sin.data() + begin * half;
    if (variant_of(length) == 0) {
      const kernels::RopeAngles& all = variants[0].angles;
      std::copy_n(all.cos.const_data_ptr<float>(), length * half, cos);
      std::copy_n(all.sin.const_data_ptr<float>(), length * half, sin);
      return;
    }
    const spec::RopeTable table = spec::rope_table(rope, length);
    for (int64_t p = 0; p < length; ++p) write_angles(table, p, cos + p * half, sin + p * half);
  });
  return result;
}

const kernels::RopeAngles& RopeCache::Table::on(at::Device device, bool is_pinned) {
  if (on_device.cos.defined()) return on_device;
  std::vector<at::Tensor> cos, sin;
  for (const Variant& variant : variants) {
    cos.push_back(variant.angles.cos);
    sin.push_back(variant.angles.sin);
  }
  on_device = {sent(joined(cos), device, is_pinned), sent(joined(sin), device, is_pinned)};
  return on_device;
}

const at::Tensor& RopeCache::Table::axes_on(at::Device device, bool is_pinned) {
  if (axes_on_device.defined()) return axes_on_device;
  const int64_t half = rope.rotary_dim / 2;
  const at::Tensor axes = at::empty({1, 1, half}, at::kLong);
  for (int64_t i = 0; i < half; ++i) axes.data_ptr<int64_t>()[i] = rope.axis_of(i);
  axes_on_device = sent(axes, device, is_pinned);
  return axes_on_device;
}

RopeCache::RopeCache(const std::vector<spec::RopeSpec>& ropes) {
  for (const spec::RopeSpec& rope : ropes) tables_.emplace_back(rope);
}

/// M-RoPE: each frequency reads the position of its axis.   @param positions [axes, T]
kernels::RopeAngles RopeCache::Table::angles_of_axes(const at::Tensor& positions, bool is_pinned) {
  const int64_t half = rope.rotary_dim / 2, tokens = positions.size(1);
  const kernels::RopeAngles& all = on(positions.device(), is_pinned);
  if (rope.sections.empty())
    return {all.cos.index_select(0, positions[0]), all.sin.index_select(0, positions[0])};
  const at::Tensor axis_of_channel =
      axes_on(positions.device(), is_pinned).expand({1, tokens, half});
  const auto chosen = [&](const at::Tensor& table) {
    const at::Tensor each = table.index_select(0, positions.flatten()).view({-1, tokens, half});
    return each.gather(0, axis_of_channel).squeeze(0);
  };
  return {chosen(all.cos), chosen(all.sin)};
}

std::vector<RopeRows> RopeCache::rows_of(const std::vector<int32_t>& cu_seqlens,
                                         const std::vector<int32_t>& positions) {
  const int64_t num_positions =
      positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end()) + 1;
  std::vector<RopeRows> rows;
  for (Table& table : tables_) rows.push_back(table.rows_of(cu_seqlens, num_positions));
  return rows;
}

std::vector<kernels::RopeAngles> RopeCache::angles(const at::Tensor& positions,
                                                   const std::vector<DeviceRopeRows>& rows,
                                                   bool is_pinned) {
  SFTRUN_CHECK_EQ(rows.size(), tables_.size());
  std::vector<kernels::RopeAngles> result;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].cos.defined()) {
      const int64_t half = tables_[i].rope.rotary_dim / 2;
      result.push_back({rows[i].cos.view({-1, half}), rows[i].sin.view({-1, half})});
      continue;
    }
    if (positions.dim() == 2) {
      result.push_back(tables_[i].angles_of_axes(positions, is_pinned));
      continue;
    }
    const kernels::RopeAngles& all = tables_[i].on(positions.device(), is_pinned);
    const at::Tensor& chosen = rows[i].rows.defined() ? rows[i].rows : positions;
    result.push_back({all.cos.index_select(0, chosen), all.sin.index_select(0, chosen)});
  }
  return result;
}

void RopeCache::fill_positions(layers::BatchContext& context, const std::vector<int64_t>& positions,
                               at::Device device) const {
  context.ropes.clear();
  for (const Table& table : tables_) {
    kernels::RopeAngles rows =
        angles_for(static_cast<int64_t>(positions.size()), table.rope.rotary_dim / 2);
    for (size_t row = 0; row < positions.size(); ++row) {
      write_row(rows, static_cast<int64_t>(row), spec::rope_table(table.rope, positions[row] + 1),
                positions[row]);
    }
    context.ropes.push_back({rows.cos.to(device), rows.sin.to(device)});
  }
}

int64_t RopeCache::switches_after() const {
  for (const Table& table : tables_) {
    if (table.rope.type == spec::RopeType::kLongRope)
      return table.rope.original_max_position_embeddings;
  }
  return 0;
}

}  // namespace sftrun::model
