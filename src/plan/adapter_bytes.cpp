#include "adapter_bytes.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "sftrun/spec/trained_names.h"

namespace sftrun::plan {
namespace {

/// Rows of joint linears have so many columns for adapters, or a multiple.
constexpr int64_t kJointStep = 16;
constexpr const char* kGateUp = "gate_up";  // `spec::LinearSpec::joint`

int64_t padded(int64_t columns) {
  return (columns + kJointStep - 1) / kJointStep * kJointStep;
}

/// Linears without a joint are products of their own.
std::string_view product_of(const spec::LinearSpec& linear) {
  return linear.joint.empty() ? std::string_view(linear.module) : linear.joint;
}

/// The rank of a linear's adapter; 0: it has none.
int64_t rank_of(const StepContext& step, int64_t layer, const spec::LinearSpec& linear) {
  const std::string name = spec::name_in_layer(step.arch, layer, linear.module);
  if (step.trains_base || !spec::is_target(step.lora, name, linear, step.arch)) return 0;
  return step.lora.r_of(spec::update_name(step.lora, name));
}

}  // namespace

int64_t adapter_columns(const StepContext& step, int64_t layer, const spec::BlockTensors& block) {
  std::map<std::string_view, int64_t> products;
  int64_t columns = 0;
  for (const spec::LinearSpec& linear : block.linears) {
    const int64_t rank = rank_of(step, layer, linear),
                  own = rank > 0 && step.lora.dora ? rank + linear.out_features : rank;
    (step.joins_linears ? products[product_of(linear)] : columns) += own;
  }
  // Rows of joint linears are padded; those of gate and up have them beside, too.
  for (const auto& [product, own] : products) columns += (product == kGateUp ? 2 : 1) * padded(own);
  return columns;
}

bool has_biased_joint_alone(const StepContext& step) {
  if (!step.joins_linears) return false;
  for (int64_t layer = 0; layer < step.arch.num_layers; ++layer) {
    std::map<std::string_view, int64_t> ranks;  // of joints with a bias
    for (const spec::LinearSpec& linear : spec::layer_linears(step.arch, layer))
      if (linear.bias && !linear.joint.empty()) ranks[linear.joint] += rank_of(step, layer, linear);
    if (std::ranges::any_of(ranks, [](const auto& joint) { return joint.second == 0; }))
      return true;
  }
  return false;
}

int64_t joint_adapter_bytes(const StepContext& step, int64_t layer) {
  if (!step.joins_linears) return 0;
  struct Joint {
    int64_t rank = 0, inputs = 0, outputs = 0;
  };
  std::map<std::string_view, Joint> joints;
  for (const spec::LinearSpec& linear : spec::layer_linears(step.arch, layer)) {
    if (linear.joint.empty()) continue;
    Joint& joint = joints[linear.joint];
    joint.inputs = linear.in_features, joint.outputs += linear.out_features;
    joint.rank += rank_of(step, layer, linear);
  }
  int64_t values = 0;
  for (const auto& [name, joint] : joints) {
    const int64_t ranks = padded(joint.rank);
    values += ranks * (joint.inputs + joint.outputs + ranks);
  }
  return values * step.shape.element_bytes;
}

int64_t largest_product(const spec::ArchSpec& arch, int64_t layer) {
  std::map<std::string_view, int64_t> products;
  int64_t largest = 0;
  for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
    int64_t& values = products[product_of(linear)];
    values += linear.in_features * linear.out_features;
    largest = std::max(largest, values);
  }
  return largest;
}

}  // namespace sftrun::plan
