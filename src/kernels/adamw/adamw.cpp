#include <ATen/ATen.h>

#include "adamw/adamw_launch.h"
#include "cuda/launch.h"
#include "operands.h"
#include "parallel.h"
#include "row_kernels.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_adamw)> launch_adamw("launch_adamw");
const CudaEntry<decltype(cuda::launch_adamw_8bit)> launch_adamw_8bit("launch_adamw_8bit");

/// Checks the range of elements to update.
void require_range(const at::Tensor& flat, int64_t begin, int64_t end) {
  TORCH_CHECK(0 <= begin && begin <= end && end <= flat.numel(), "elements ", begin, " to ", end,
              " of ", flat.numel());
}

void require_map(const DynamicMap& map, const at::Tensor& like) {
  require_operand(map.values, like, at::kFloat);
  require_numel(map.values, 256);
  require_operand(map.codes, like, at::kByte);
  require_numel(map.codes, kStateSteps);
  require_operand(map.tree, like, at::kShort);
  require_numel(map.tree, kStateTree);
}

void require_8bit_operands(const at::Tensor& master, const at::Tensor& grad,
                           const BlockwiseMoments& moments, const at::Tensor& compute,
                           int64_t first_block, int64_t end_block) {
  for (const at::Tensor* flat : {&master, &grad}) {
    require_operand(*flat, master, at::kFloat);
    require_numel(*flat, master.numel());
  }
  require_operand(compute, master, compute.scalar_type());
  require_numel(compute, master.numel());
  const int64_t blocks = moments.exp_avg_absmax.numel();
  for (const at::Tensor* codes : {&moments.exp_avg, &moments.exp_avg_sq}) {
    require_operand(*codes, master, at::kByte);
    require_numel(*codes, blocks * kStateBlock);
  }
  for (const at::Tensor* factors : {&moments.exp_avg_absmax, &moments.exp_avg_sq_absmax}) {
    require_operand(*factors, master, at::kFloat);
    require_range(*factors, first_block, end_block);
  }
  require_operand(moments.block_begin, master, at::kLong);
  require_range(moments.block_begin, first_block, end_block);
  require_operand(moments.block_numel, master, at::kShort);
  require_range(moments.block_numel, first_block, end_block);
  require_map(moments.exp_avg_map, master);
  require_map(moments.exp_avg_sq_map, master);
}

/// CPU: whether the gate is open or undefined; sets `grad_scale` from the gate.
template <typename Params>
bool passes(const at::Tensor& gate, Params& params) {
  if (!gate.defined()) return true;
  const auto& here = *static_cast<const UpdateGate*>(gate.const_data_ptr());
  params.grad_scale = here.grad_scale;
  return here.is_open != 0;
}

/// The CPU's kernels write copies in bf16. A GPU may compute in fp16 with weights that the CPU updates.
void refresh_fp16_copy(const at::Tensor& compute, const at::Tensor& master, int64_t begin,
                       int64_t end) {
  if (compute.scalar_type() != at::kHalf) return;
  compute.narrow(0, begin, end - begin).copy_(master.narrow(0, begin, end - begin));
}

/// Null if undefined.
const UpdateGate* gate_of(const at::Tensor& gate) {
  return gate.defined() ? static_cast<const UpdateGate*>(gate.const_data_ptr()) : nullptr;
}

void adamw_on_cuda(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg,
                   at::Tensor& exp_avg_sq, at::Tensor& compute, int64_t begin, int64_t end,
                   const AdamWParams& params, const at::Tensor& gate) {
  const bool own_copy = compute.data_ptr() != master.data_ptr();
  void* copy = own_copy ? static_cast<char*>(compute.data_ptr()) +
                              begin * static_cast<int64_t>(compute.element_size())
                        : nullptr;
  const Launch launch(master);
  launch_adamw(cuda_type_of(compute), master.data_ptr<float>() + begin,
               grad.data_ptr<float>() + begin, exp_avg.data_ptr<float>() + begin,
               exp_avg_sq.data_ptr<float>() + begin, copy, end - begin, params, launch.stream(),
               gate_of(gate));
  launch.check();
}

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
  return {data<float>(map.values), data<uint8_t>(map.codes), data<uint16_t>(map.tree)};
}

void adamw_8bit_on_cuda(at::Tensor& master, const at::Tensor& grad, BlockwiseMoments& moments,
                        at::Tensor& compute, int64_t first_block, int64_t end_block,
                        const AdamW8bitParams& params, const at::Tensor& gate) {
  const bool own_copy = compute.data_ptr() != master.data_ptr();
  const Launch launch(master);
  launch_adamw_8bit(cuda_type_of(compute), master.data_ptr<float>(), grad.data_ptr<float>(),
                    blocks_of(moments, first_block, end_block),
                    own_copy ? compute.data_ptr() : nullptr, map_of(moments.exp_avg_map),
                    map_of(moments.exp_avg_sq_map), params, launch.stream(), gate_of(gate));
  launch.check();
}

}  // namespace

void adamw_(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
            at::Tensor& compute, int64_t begin, int64_t end, const AdamWParams& params,
            const at::Tensor& gate) {
  const ProfileRange range("adamw");
  for (const at::Tensor* operand :
       {&std::as_const(master), &grad, &std::as_const(exp_avg), &std::as_const(exp_avg_sq)}) {
    require_operand(*operand, master, at::kFloat);
    require_range(*operand, begin, end);
  }
  require_operand(compute, master, compute.scalar_type());
  require_range(compute, begin, end);
  if (gate.defined()) require_gate(gate, master);
  if (master.is_cuda()) {
    return adamw_on_cuda(master, grad, exp_avg, exp_avg_sq, compute, begin, end, params, gate);
  }
  AdamWParams own = params;
  if (!passes(gate, own)) return;
  uint16_t* copy = compute.scalar_type() == at::kBFloat16 ? data<uint16_t>(compute) : nullptr;
  parallel_for(begin, end, 16384, [&](int64_t first, int64_t last) {
    cpu_kernels().adamw(data<float>(master) + first, data<float>(grad) + first,
                        data<float>(exp_avg) + first, data<float>(exp_avg_sq) + first,
                        copy ? copy + first : nullptr, last - first, own);
  });
  refresh_fp16_copy(compute, master, begin, end);
}

void adamw_8bit_(at::Tensor& master, const at::Tensor& grad, BlockwiseMoments& moments,
                 at::Tensor& compute, int64_t first_block, int64_t end_block,
                 const AdamW8bitParams& params, const at::Tensor& gate) {
  const ProfileRange range("adamw_8bit");
  require_8bit_operands(master, grad, moments, compute, first_block, end_block);
  if (gate.defined()) require_gate(gate, master);
  if (master.is_cuda())
    return adamw_8bit_on_cuda(master, grad, moments, compute, first_block, end_block, params, gate);
  AdamW8bitParams own = params;
  if (!passes(gate, own)) return;
  constexpr int64_t kGrain = 16384 / kStateBlock;
  uint16_t* copy = compute.scalar_type() == at::kBFloat16 ? data<uint16_t>(compute) : nullptr;
  const StateMap exp_avg_map = map_of(moments.exp_avg_map),
                 exp_avg_sq_map = map_of(moments.exp_avg_sq_map);
  parallel_for(first_block, end_block, kGrain, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = data<int64_t>(moments.block_begin)[block];
      const StateBlock state{data<uint8_t>(moments.exp_avg) + block * kStateBlock,
                             data<uint8_t>(moments.exp_avg_sq) + block * kStateBlock,
                             data<float>(moments.exp_avg_absmax) + block,
                             data<float>(moments.exp_avg_sq_absmax) + block};
      cpu_kernels().adamw_8bit(data<float>(master) + begin, data<float>(grad) + begin, state,
                               copy ? copy + begin : nullptr,
                               data<int16_t>(moments.block_numel)[block], exp_avg_map,
                               exp_avg_sq_map, own);
    }
  });
  if (first_block == end_block) return;
  const auto* begins = data<int64_t>(moments.block_begin);
  refresh_fp16_copy(compute, master, begins[first_block],
                    begins[end_block - 1] + data<int16_t>(moments.block_numel)[end_block - 1]);
}

}  // namespace sftrun::kernels
