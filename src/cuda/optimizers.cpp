#include "entries.h"
#include "launch_context.h"

/// AdamW, and what a step computes over all values.
namespace sftrun::kernels::plugin {

namespace {

/// Null if undefined.
const UpdateGate* gate_of(const at::Tensor& gate) {
  return gate.defined() ? static_cast<const UpdateGate*>(gate.const_data_ptr()) : nullptr;
}

}  // namespace

void adamw(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
           at::Tensor& compute, int64_t begin, int64_t end, const AdamWParams& params,
           const at::Tensor& gate) {
  const bool own_copy = compute.data_ptr() != master.data_ptr();
  void* copy = own_copy ? static_cast<char*>(compute.data_ptr()) +
                              begin * static_cast<int64_t>(compute.element_size())
                        : nullptr;
  const Launch launch(master);
  cuda::launch_adamw(type_of(compute), master.data_ptr<float>() + begin,
                     grad.data_ptr<float>() + begin, exp_avg.data_ptr<float>() + begin,
                     exp_avg_sq.data_ptr<float>() + begin, copy, end - begin, params,
                     launch.stream(), gate_of(gate));
  launch.check();
}

namespace {

cuda::StateBlocks blocks_of(const BlockwiseMoments& moments, int64_t first, int64_t end) {
  return {{moments.exp_avg.data_ptr<uint8_t>() + first * kStateBlock,
           moments.exp_avg_sq.data_ptr<uint8_t>() + first * kStateBlock,
           moments.exp_avg_absmax.data_ptr<float>() + first,
           moments.exp_avg_sq_absmax.data_ptr<float>() + first},
          moments.block_begin.data_ptr<int64_t>() + first,
          moments.block_numel.data_ptr<int16_t>() + first,
          end - first};
}

StateMap map_of(const DynamicMap& map) {
  return {map.values.data_ptr<float>(), map.codes.data_ptr<uint8_t>(),
          static_cast<const uint16_t*>(map.tree.const_data_ptr())};
}

}  // namespace

void adamw_8bit(at::Tensor& master, const at::Tensor& grad, BlockwiseMoments& moments,
                at::Tensor& compute, int64_t first_block, int64_t end_block,
                const AdamW8bitParams& params, const at::Tensor& gate) {
  const bool own_copy = compute.data_ptr() != master.data_ptr();
  const Launch launch(master);
  cuda::launch_adamw_8bit(type_of(compute), master.data_ptr<float>(), grad.data_ptr<float>(),
                          blocks_of(moments, first_block, end_block),
                          own_copy ? compute.data_ptr() : nullptr, map_of(moments.exp_avg_map),
                          map_of(moments.exp_avg_sq_map), params, launch.stream(), gate_of(gate));
  launch.check();
}

void decide_update(at::Tensor& gate, const at::Tensor& numbers, const GateRule& rule) {
  const Launch launch(numbers);
  cuda::launch_decide_update({numbers.const_data_ptr<double>(), numbers.size(0), numbers.size(1),
                              rule.num_losses, rule.num_terms, rule.max_norm},
                             static_cast<UpdateGate*>(gate.data_ptr()), launch.stream());
  launch.check();
}

at::Tensor sum_of_squares(const at::Tensor& flat) {
  const int64_t chunks = (flat.numel() + cuda::kSumChunk - 1) / cuda::kSumChunk;
  const auto options = flat.options().dtype(at::kDouble);
  at::Tensor partial = at::empty({chunks}, options), total = at::empty({}, options);
  const Launch launch(flat);
  cuda::launch_sum_of_squares(flat.data_ptr<float>(), flat.numel(), partial.data_ptr<double>(),
                              total.data_ptr<double>(), launch.stream());
  launch.check();
  return total;
}

}  // namespace sftrun::kernels::plugin
