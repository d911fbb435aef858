#include "adamw/update_gate.h"

#include <ATen/ATen.h>

#include <cstring>

#include "adamw/update_gate_launch.h"
#include "cuda/launch.h"
#include "operands.h"
#include "sftrun/kernels/ops.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_decide_update)> launch_decide_update("launch_decide_update");

void decide_on_cuda(at::Tensor& gate, const at::Tensor& numbers, const GateRule& rule) {
  const Launch launch(numbers);
  launch_decide_update({numbers.const_data_ptr<double>(), numbers.size(0), numbers.size(1),
                        rule.num_losses, rule.num_terms, rule.max_norm},
                       static_cast<UpdateGate*>(gate.data_ptr()), launch.stream());
  launch.check();
}

}  // namespace

at::Tensor open_gate(at::Device device) {
  const UpdateGate open{.grad_scale = 1, .is_open = 1};
  at::Tensor gate =
      at::empty({static_cast<int64_t>(sizeof(open))}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(gate.data_ptr(), &open, sizeof(open));
  return gate.to(device);
}

void decide_update_(at::Tensor& gate, const at::Tensor& numbers, const GateRule& rule) {
  require_gate(gate, numbers);
  require_rows(numbers);
  require_operand(numbers, numbers, at::kDouble);
  TORCH_CHECK(numbers.size(0) > 0 && 0 <= rule.num_losses && rule.num_losses < numbers.size(1),
              rule.num_losses, " losses and a norm in numbers of shape ", numbers.sizes());
  if (numbers.is_cuda()) return decide_on_cuda(gate, numbers, rule);
  double losses = 0, norms = 0;
  const auto* value = numbers.const_data_ptr<double>();
  for (int64_t rank = 0; rank < numbers.size(0); ++rank, value += numbers.size(1)) {
    norms += value[0];
    for (int64_t i = 1; i <= rule.num_losses; ++i) losses += value[i];
  }
  const bool is_finite = is_finite_number(losses / rule.num_terms) && is_finite_number(norms);
  auto* there = static_cast<UpdateGate*>(gate.data_ptr());
  *there = decided(*there, *numbers.const_data_ptr<double>(), is_finite, rule.max_norm);
}

}  // namespace sftrun::kernels
