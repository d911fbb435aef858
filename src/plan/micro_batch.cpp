#include "sftrun/plan/micro_batch.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "sftrun/config/optimizer_state.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/plan/stages.h"
#include "sftrun/spec/quantised_modules.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::plan {
namespace {

constexpr int64_t kFp32Bytes = 4;
constexpr int64_t kPagedBytes = 64 << 20;  // both moments of the two parts on the device

/// Number of trained values and bytes of their optimizer state.
class Trained {
 public:
  explicit Trained(const config::TrainConfig& train) : train_(&train) {}
  void add(const std::vector<int64_t>& shape, TensorRole role = TensorRole::kLoraA) {
    values_ += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    state_bytes_ += config::optimizer_state_bytes(*train_, role, shape);
  }
  void scale_to(int64_t values) {
    state_bytes_ =
        static_cast<int64_t>(static_cast<double>(state_bytes_) * static_cast<double>(values) /
                             static_cast<double>(std::max<int64_t>(1, values_)));
    values_ = values;
  }
  int64_t values() const { return values_; }
  int64_t state_bytes() const { return state_bytes_; }

 private:
  const config::TrainConfig* train_;
  int64_t values_ = 0, state_bytes_ = 0;
};

void add_lora(const spec::ArchSpec& arch, int64_t r, Trained& trained) {
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      trained.add({r, linear.in_features});
      trained.add({linear.out_features, r});
    }
    for (const spec::ExpertSpec& experts : spec::layer_experts(arch, layer)) {
      trained.add({arch.mixture.num_experts * r, experts.in_features});
      trained.add({experts.out_features, arch.mixture.num_experts * r});
    }
  }
}

/// The adapter's values; its moments are estimated as if every layer had an adapter of one rank.
Trained lora_values(const spec::ArchSpec& arch, const config::RunConfig& config) {
  Trained trained(config.train);
  add_lora(arch, config.tuning.lora.r, trained);
  trained.scale_to(spec::num_lora_values(lora_spec(config.tuning.lora), arch));
  return trained;
}

int64_t packed_bytes(const spec::TensorSpec& tensor, const QuantOptions& options) {
  const int64_t columns = tensor.shape.back();
  return quant_info(options.format).bytes(tensor.numel() / columns, columns, options);
}

/// Whether what the files hold in fewer bits is to be in the run's dtype.
bool is_unpacked(const spec::TensorSpec& tensor, const config::TuningConfig& tuning) {
  const bool is_end =
      tensor.role == spec::TensorRole::kEmbedding || tensor.role == spec::TensorRole::kHead;
  return (is_end && tuning.quant_embeddings == false) || is_skipped(tensor.name, tuning);
}

}  // namespace

bool is_skipped(const std::string& name, const config::TuningConfig& tuning) {
  return std::any_of(tuning.skip_modules.begin(), tuning.skip_modules.end(),
                     [&](const std::string& part) { return has_path_part(name, part); });
}

int64_t activation_bytes_per_token(const spec::ArchSpec& arch, int64_t element_bytes,
                                   config::Checkpointing checkpointing, bool inputs_on_host) {
  const int64_t queries = arch.num_heads * arch.head_dim, keys = arch.num_kv_heads * arch.head_dim;
  // Input, normed input, middle, normed middle; q and attention output; k and v; gate, up and their
  // product.
  const int64_t inner =
      std::max(arch.intermediate_size,
               arch.mixture.top_k * (arch.mixture.intermediate_size + arch.hidden_size));
  const int64_t mixer =
      std::max(2 * queries + 2 * keys, arch.delta_net.channels() + 3 * arch.delta_net.values());
  const int64_t mlp = 3 * (inner + arch.mixture.shared_size);
  const int64_t block = 4 * arch.hidden_size + mixer + mlp;
  const int64_t temporaries = 4 * arch.hidden_size + 2 * queries + 2 * inner;
  constexpr int64_t kInputsUnderWay = 3;  // one is used, and its neighbours are copied
  const int64_t num_inputs =
      inputs_on_host ? std::min(kInputsUnderWay, arch.num_layers) : arch.num_layers;
  // A block that is computed again leaves only its input, and one layer's is there at a time.
  using enum config::Checkpointing;
  const int64_t again = checkpointing == kAttention ? arch.hidden_size + mixer
                        : checkpointing == kMlp     ? arch.hidden_size + mlp
                                                    : 0;
  const int64_t kept = checkpointing == kLayer ? num_inputs * arch.hidden_size + block
                                               : arch.num_layers * (block - again) + again;
  return (kept + temporaries) * element_bytes;
}

bool keeps_stored(const config::TuningConfig& tuning, bool holds_packed) {
  return holds_packed && (tuning.quant == config::Quant::kAuto || tuning.keeps_blocks());
}

std::set<std::string> quantised_names(const spec::ArchSpec& arch,
                                      const config::TuningConfig& tuning) {
  std::set<std::string> names;
  const auto add = [&](const std::string& module, const char* ending = ".weight") {
    if (!is_skipped(module, tuning)) names.insert(module + ending);
  };
  for (const std::string& module : spec::quantised_modules(arch)) add(module);
  const QuantOptions options = tuning.quant_options().value();
  const int64_t block_size = quant_info(options.format).has_blocks ? options.block_size : 1;
  for (const spec::TensorSpec& tensor : spec::tensor_specs(arch)) {
    const bool is_experts = tensor.role == spec::TensorRole::kExperts;
    if (is_experts && spec::splits_by_expert(tensor.shape, block_size)) add(tensor.name, "");
  }
  if (tuning.quant_embeddings.value_or(false)) {
    add(spec::embedding_module(arch));
    add(spec::kHeadModule);
  }
  return names;
}

int64_t base_bytes(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                   int64_t element_bytes, const StoredBytes& stored) {
  const bool keeps = keeps_stored(tuning, !stored.empty());
  const std::optional<QuantOptions> options = keeps ? std::nullopt : tuning.quant_options();
  const std::set<std::string> quantised =
      options ? quantised_names(arch, tuning) : std::set<std::string>();
  int64_t total = 0;
  for (const spec::TensorSpec& tensor : spec::tensor_specs(arch)) {
    const auto kept = is_unpacked(tensor, tuning) ? stored.end() : stored.find(tensor.name);
    const bool is_experts = tensor.role == spec::TensorRole::kExperts;
    if ((keeps || (options && is_experts)) && kept != stored.end())
      total += static_cast<int64_t>(kept->second);
    else if (quantised.contains(tensor.name))
      total += packed_bytes(tensor, *options);
    else
      total += tensor.numel() * element_bytes;
  }
  return total;
}

namespace {

/// Bytes of the whole model on one device.
struct WholeBytes {
  int64_t base = 0;       ///< frozen
  int64_t masters = 0;    ///< fp32
  int64_t copies = 0;     ///< in the compute dtype; 0: that is fp32
  int64_t gradients = 0;  ///< fp32
  int64_t optimizer = 0;
};

/// The share of the largest unit (embedding, layer, head) in the parameters of the model.
double share_of_largest_unit(const spec::ArchSpec& arch) {
  int64_t all = 0, ends = 0, largest = 0;
  for (const spec::TensorSpec& tensor : spec::tensor_specs(arch)) {
    all += tensor.numel();
    if (tensor.role != spec::TensorRole::kEmbedding && tensor.role != spec::TensorRole::kHead)
      continue;
    ends += tensor.numel();
    largest = std::max(largest, tensor.numel());
  }
  largest = std::max(largest, (all - ends) / arch.num_layers);
  return static_cast<double>(largest) / static_cast<double>(all);
}

int64_t divided_bytes(const WholeBytes& whole, config::Strategy strategy, int64_t shards,
                      double of_largest_unit, bool base_on_host) {
  const auto share = [&](int64_t bytes) { return (bytes + shards - 1) / shards; };
  const int64_t weights = whole.base + whole.masters + whole.copies,
                states = share(whole.masters + whole.copies) + share(whole.optimizer);
  const int64_t passes = whole.copies == 0 ? whole.masters : whole.copies;  // read by passes
  const auto two_units = [&](int64_t bytes) {
    return static_cast<int64_t>(2 * of_largest_unit * static_cast<double>(bytes));
  };
  const int64_t whole_base =
      base_on_host ? std::min(whole.base, two_units(whole.base)) : whole.base;
  if (strategy == config::Strategy::kZero1)
    return whole_base + passes + whole.gradients + share(whole.gradients) + states;
  if (strategy == config::Strategy::kZero2)
    return whole_base + passes + share(whole.gradients) + two_units(whole.gradients) + states;
  return (base_on_host ? 0 : share(whole.base)) + share(whole.gradients) + states +
         two_units(weights + whole.gradients);
}

}  // namespace

int64_t num_shards(const config::ParallelConfig& parallel, int world_size, int local_world_size) {
  if (!config::is_sharded(parallel.strategy)) return 1;
  if (parallel.strategy != config::Strategy::kHybrid) return world_size;
  return parallel.dp_shard.value_or(local_world_size);
}

int64_t static_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                     int64_t element_bytes, const StoredBytes& stored, const DeviceShare& device) {
  const bool trains_all = !config.tuning.trains_adapter();
  Trained trained(config.train);
  if (trains_all) {
    for (const spec::TensorSpec& tensor : spec::tensor_specs(arch))
      trained.add(tensor.shape, tensor.role);
  } else {
    trained = lora_values(arch, config);
  }
  WholeBytes whole{.base = trains_all ? 0 : base_bytes(arch, config.tuning, element_bytes, stored),
                   .masters = trained.values() * kFp32Bytes,
                   .copies = element_bytes == kFp32Bytes ? 0 : trained.values() * element_bytes,
                   .gradients = trained.values() * kFp32Bytes,
                   .optimizer = device.on_gpu && config::is_paged(config.train.optimizer)
                                    ? kPagedBytes
                                    : trained.state_bytes()};
  if (device.on_gpu && config.parallel.offload.base == config::Offload::kCpu && device.shards == 1)
    whole.base = std::min(whole.base, static_cast<int64_t>(2 * share_of_largest_unit(arch) *
                                                           static_cast<double>(whole.base)));
  const int64_t all = whole.base + whole.masters + whole.copies + whole.gradients + whole.optimizer;
  if (config::divides_layers(config.parallel.strategy) && config.parallel.pp) {
    double largest = 0;
    for (const StageShare& stage : stage_shares(arch, config))
      largest = std::max(largest, stage.weights);
    return static_cast<int64_t>(largest * static_cast<double>(all));
  }
  if (device.shards == 1) return all;
  return divided_bytes(whole, config.parallel.strategy, device.shards, share_of_largest_unit(arch),
                       device.on_gpu && config.parallel.offload.base == config::Offload::kCpu);
}

namespace {

/// Additional bytes per token with DoRA: each adapted layer's output before its magnitude.
int64_t dora_bytes_per_token(const spec::ArchSpec& arch, const config::RunConfig& config,
                             int64_t element_bytes) {
  if (!config.tuning.trains_adapter() || !config.tuning.lora.dora ||
      config.train.gradient_checkpointing == config::Checkpointing::kLayer)
    return 0;
  const spec::LoraSpec lora = lora_spec(config.tuning.lora);
  int64_t rows = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      if (spec::is_target(lora, spec::name_in_layer(arch, layer, linear.module), linear.slot, arch))
        rows += linear.out_features;
    }
  }
  return rows * element_bytes;
}

}  // namespace

namespace {

constexpr double kUsable = 0.8;  // of a device's memory; the rest is for what is not estimated

/// Bytes of the activations of one packed sequence (objective dpo: of a pair, which is in one bin).
double bin_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                 int64_t element_bytes) {
  const int64_t sequences = config.train.objective == config::Objective::kDpo ? 2 : 1;
  double share = 1;  // of the stage with the largest activations
  if (config::divides_layers(config.parallel.strategy) && config.parallel.pp) {
    share = 0;
    for (const StageShare& stage : stage_shares(arch, config))
      share = std::max(share, stage.activations);
  }
  return share * static_cast<double>(sequences * config.model.max_seq_len) *
         static_cast<double>(activation_bytes_per_token(
                                 arch, element_bytes, config.train.gradient_checkpointing,
                                 config.parallel.offload.activations == config::Offload::kCpu) +
                             dora_bytes_per_token(arch, config, element_bytes));
}

bool fits(const spec::ArchSpec& arch, config::RunConfig config, config::Strategy strategy,
          const RunDevices& devices, const StoredBytes& stored) {
  config.parallel.strategy = strategy;
  const DeviceShare share{
      .on_gpu = devices.on_gpu,
      .shards = num_shards(config.parallel, devices.world_size, devices.local_world_size)};
  const auto held =
      static_cast<double>(static_bytes(arch, config, devices.element_bytes, stored, share));
  return held + bin_bytes(arch, config, devices.element_bytes) <=
         kUsable * static_cast<double>(devices.memory_bytes);
}

}  // namespace

config::Strategy auto_strategy(const spec::ArchSpec& arch, const config::RunConfig& config,
                               const RunDevices& devices, const StoredBytes& stored) {
  using enum config::Strategy;
  if (devices.world_size == 1) return kSingle;
  if (config::needs_whole_matrices(config.train.optimizer)) return kDdp;
  std::vector<config::Strategy> choices = {kDdp};
  if (!config.tuning.trains_adapter()) choices.insert(choices.end(), {kZero1, kZero2});
  const bool has_several_machines = devices.local_world_size < devices.world_size &&
                                    devices.world_size % devices.local_world_size == 0;
  if (has_several_machines && devices.local_world_size > 1) choices.push_back(kHybrid);
  for (const config::Strategy choice : choices)
    if (fits(arch, config, choice, devices, stored)) return choice;
  return kFsdp;
}

int64_t max_micro_batch(const spec::ArchSpec& arch, const config::RunConfig& config,
                        uint64_t memory_bytes, int64_t element_bytes, const StoredBytes& stored,
                        const DeviceShare& device) {
  const double left =
      kUsable * static_cast<double>(memory_bytes) -
      static_cast<double>(static_bytes(arch, config, element_bytes, stored, device));
  return std::clamp<int64_t>(static_cast<int64_t>(left / bin_bytes(arch, config, element_bytes)), 1,
                             config::kMaxAutoMicroBatch);
}

}  // namespace sftrun::plan
