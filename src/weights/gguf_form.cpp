#include "gguf_form.h"

#include <numeric>
#include <string_view>

namespace sftrun::weights {
namespace {

/// Row order of q and k with the two halves of each head interleaved, for RoPE on adjacent pairs.
std::vector<int64_t> interleaved_rows(int64_t num_rows, int64_t head_dim) {
  std::vector<int64_t> rows;
  const int64_t half = head_dim / 2;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t head = row / head_dim, within = row % head_dim;
    rows.push_back(head * head_dim + 2 * (within % half) + within / half);
  }
  return rows;
}

/// In llama.cpp value head v uses key head v % num_key_heads, in transformers v / (value heads per
/// key head), so llama.cpp stores the value heads in another order. Each has `size` entries, after
/// `before` other ones.
std::vector<int64_t> value_heads(const spec::DeltaNetSpec& delta, int64_t before, int64_t size) {
  std::vector<int64_t> order(static_cast<size_t>(before));
  std::iota(order.begin(), order.end(), 0);
  const int64_t group = delta.num_value_heads / delta.num_key_heads;
  for (int64_t head = 0; head < delta.num_value_heads; ++head) {
    const int64_t stored = head % group * delta.num_key_heads + head / group;
    for (int64_t i = 0; i < size; ++i) order.push_back(before + stored * size + i);
  }
  return order;
}

void describe_delta_net(const spec::DeltaNetSpec& delta, std::string_view name, GgufForm& form) {
  const auto is = [&](std::string_view ending) { return name.ends_with(ending); };
  if (is("A_log")) form.value = GgufForm::Value::kMinusExp;
  if (delta.num_value_heads == delta.num_key_heads) return;
  if (is("in_proj_qkv.weight") || is("conv1d.weight"))
    form.rows = value_heads(delta, 2 * delta.keys(), delta.value_dim);
  if (is("in_proj_z.weight")) form.rows = value_heads(delta, 0, delta.value_dim);
  if (is("in_proj_a.weight") || is("in_proj_b.weight") || is("A_log") || is("dt_bias"))
    form.rows = value_heads(delta, 0, 1);
  if (is("out_proj.weight")) form.columns = value_heads(delta, 0, delta.value_dim);
}

}  // namespace

GgufForm gguf_form(const spec::ArchSpec& arch, const spec::TensorSpec& tensor) {
  GgufForm form;
  const std::string_view name = tensor.name;
  if (name.find(".linear_attn.") != std::string_view::npos) {
    describe_delta_net(arch.delta_net, name, form);
    return form;
  }
  if (arch.norm_adds_one && tensor.adds_one && tensor.role == spec::TensorRole::kNorm)
    form.value = GgufForm::Value::kPlusOne;
  const bool holds_head_rows = name.find(".self_attn.q_proj.") != std::string_view::npos ||
                               name.find(".self_attn.k_proj.") != std::string_view::npos;
  if (holds_head_rows && spec::gguf_interleaves_heads(arch))
    form.rows = interleaved_rows(tensor.shape[0], arch.head_dim);
  return form;
}

}  // namespace sftrun::weights
