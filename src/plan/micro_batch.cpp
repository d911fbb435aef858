#include "sftrun/plan/micro_batch.h"

#include <algorithm>

#include "sftrun/plan/lora_plan.h"

namespace sftrun::plan {
namespace {

constexpr int64_t kFp32Bytes = 4;

int64_t num_parameters(const spec::ArchSpec& arch) {
  int64_t total = 0;
  for (const spec::TensorSpec& tensor : spec::tensor_specs(arch)) total += tensor.numel();
  return total;
}

/// Of four bits: the codes, and the blocks' factors in 32 bits, or in 8 and every 256 of them one
/// in 32.
int64_t packed_bytes(int64_t num_values, const config::TuningConfig& tuning) {
  const int64_t blocks = (num_values + tuning.quant_block_size - 1) / tuning.quant_block_size;
  const int64_t factors = tuning.double_quant ? blocks + (blocks + 255) / 256 * 4 : blocks * 4;
  return (num_values + 1) / 2 + factors;
}

/// Of the frozen base.
int64_t base_bytes(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                   int64_t element_bytes) {
  int64_t dense = num_parameters(arch), packed = 0;
  if (!tuning.has_4bit_base()) return dense * element_bytes;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      if (linear.slot == spec::LinearSlot::kRouter) continue;
      dense -= linear.in_features * linear.out_features;
      packed += packed_bytes(linear.in_features * linear.out_features, tuning);
    }
  }
  return dense * element_bytes + packed;
}

}  // namespace

int64_t activation_bytes_per_token(const spec::ArchSpec& arch, int64_t element_bytes,
                                   bool gradient_checkpointing) {
  const int64_t queries = arch.num_heads * arch.head_dim, keys = arch.num_kv_heads * arch.head_dim;
  // input, normed input, middle, normed middle; q and attention; k and v; gate, up and their
  // product
  const int64_t inner =
      std::max(arch.intermediate_size,
               arch.mixture.top_k * (arch.mixture.intermediate_size + arch.hidden_size));
  const int64_t mixer =
      std::max(2 * queries + 2 * keys, arch.delta_net.channels() + 3 * arch.delta_net.values());
  const int64_t block = 4 * arch.hidden_size + mixer + 3 * (inner + arch.mixture.shared_size);
  const int64_t temporaries = 4 * arch.hidden_size + 2 * queries + 2 * inner;
  const int64_t kept =
      gradient_checkpointing ? arch.num_layers * arch.hidden_size + block : arch.num_layers * block;
  return (kept + temporaries) * element_bytes;
}

int64_t static_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                     int64_t element_bytes) {
  const bool whole = !config.tuning.trains_adapter();
  const int64_t trained = whole ? num_parameters(arch)
                                : spec::num_lora_values(lora_targets(config.tuning.lora),
                                                        lora_sizes(config.tuning.lora), arch);
  // master, gradient and two moments in fp32, and the copy in the compute dtype where that is
  // another
  const int64_t per_trained = 4 * kFp32Bytes + (element_bytes == kFp32Bytes ? 0 : element_bytes);
  return (whole ? 0 : base_bytes(arch, config.tuning, element_bytes)) + trained * per_trained;
}

namespace {

/// What DoRA keeps of a token beside the rest: every adapted layer's result before its magnitudes.
int64_t dora_bytes_per_token(const spec::ArchSpec& arch, const config::RunConfig& config,
                             int64_t element_bytes) {
  if (!config.tuning.trains_adapter() || !config.tuning.lora.dora ||
      config.train.gradient_checkpointing)
    return 0;
  const spec::LoraTargets targets = lora_targets(config.tuning.lora);
  int64_t rows = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      if (spec::is_target(targets, spec::name_in_layer(arch, layer, linear.module), linear.slot,
                          arch))
        rows += linear.out_features;
    }
  }
  return rows * element_bytes;
}

}  // namespace

int64_t max_micro_batch(const spec::ArchSpec& arch, const config::RunConfig& config,
                        uint64_t memory_bytes, int64_t element_bytes) {
  constexpr double kUsable = 0.8;
  const double left = kUsable * static_cast<double>(memory_bytes) -
                      static_cast<double>(static_bytes(arch, config, element_bytes));
  const double bin =
      static_cast<double>(config.model.max_seq_len) *
      static_cast<double>(
          activation_bytes_per_token(arch, element_bytes, config.train.gradient_checkpointing) +
          dora_bytes_per_token(arch, config, element_bytes));
  return std::clamp<int64_t>(static_cast<int64_t>(left / bin), 1, config::kMaxAutoMicroBatch);
}

}  // namespace sftrun::plan
