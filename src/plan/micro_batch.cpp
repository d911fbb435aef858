#include "sftrun/plan/micro_batch.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "sftrun/config/optimizer_state.h"
#include "sftrun/config/reference_model.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/plan/memory_plan.h"
#include "sftrun/plan/refusals.h"
#include "sftrun/plan/stages.h"
#include "sftrun/plan/step_memory.h"
#include "sftrun/plan/tower.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/quantised_modules.h"
#include "sftrun/spec/tensor_parallel.h"
#include "sftrun/spec/trained_names.h"
#include "teacher_memory.h"
#include "trained_in_full.h"

namespace sftrun::plan {
namespace {

constexpr int64_t kFp32Bytes = 4;

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

/// The text model's adapter; its moments are estimated as if every layer had an adapter of one rank.
Trained lora_values(const spec::ArchSpec& arch, const config::RunConfig& config) {
  Trained trained(config.train);
  add_lora(arch, config.tuning.lora.r, trained);
  spec::LoraSpec lora = lora_spec(config.tuning, arch);
  lora.parts = TrainedParts::text();
  trained.scale_to(spec::num_lora_values(lora, arch));
  return trained;
}

/// What trains of a tensor of the image side: itself, or its module's adapter.
void add_tower_tensor(const spec::TensorSpec& tensor, const TowerTraining& training,
                      const config::LoraConfig& lora, Trained& trained) {
  if (training.trains(tensor.name)) return trained.add(tensor.shape, tensor.role);
  if (!is_tower_linear(tensor)) return;
  const int64_t r = training.rank(module_of_weight(tensor.name));
  if (r == 0) return;
  trained.add({r, tensor.shape[1]});
  trained.add({tensor.shape[0], r});
  if (lora.dora) trained.add({tensor.shape[0]});
}

/// A run without an adapter: its trained tensors, and the number of values of the others.
struct TrainedTensors {
  Trained trained;
  int64_t frozen_values = 0;
};
TrainedTensors trained_tensors(const spec::ArchSpec& arch, const config::RunConfig& config,
                               const TowerUse& tower) {
  TrainedTensors tensors{.trained = Trained(config.train)};
  const std::set<std::string> names = trained_in_full(arch, config.tuning, tower);
  for (const spec::TensorSpec& tensor : with_tower(spec::tensor_specs(arch), arch, tower)) {
    if (names.contains(tensor.name))
      tensors.trained.add(tensor.shape, tensor.role);
    else
      tensors.frozen_values += tensor.numel();
  }
  return tensors;
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

std::set<std::string> quantised_tower_names(const spec::ArchSpec& arch,
                                            const config::TuningConfig& tuning) {
  std::set<std::string> names;
  for (const spec::TensorSpec& tensor : tower_tensors(arch))
    if (is_tower_linear(tensor) && !is_skipped(module_of_weight(tensor.name), tuning))
      names.insert(tensor.name);
  return names;
}

namespace {

/// What each tensor of a frozen base takes: nothing where its own values train.
class BaseFormat {
 public:
  BaseFormat(const spec::ArchSpec& arch, const config::TuningConfig& tuning, int64_t element_bytes,
             const StoredBytes& stored, const TowerUse& tower)
      : tuning_(tuning),
        element_bytes_(element_bytes),
        stored_(stored),
        keeps_(keeps_stored(tuning, !stored.empty())),
        not_frozen_(trained_in_full(arch, tuning, tower)) {
    if (!keeps_) options_ = tuning.quant_options();
    // Beside adapters, a tied head stays as it is when the embedding trains.
    if (tuning.trains_adapter() && arch.tie_word_embeddings)
      not_frozen_.erase(spec::embedding_module(arch) + ".weight");
    if (!options_) return;
    quantised_ = quantised_names(arch, tuning);
    if (tower.is_loaded) quantised_.merge(quantised_tower_names(arch, tuning));
  }

  int64_t bytes(const spec::TensorSpec& tensor) const {
    if (not_frozen_.contains(tensor.name)) return 0;
    const auto kept = is_unpacked(tensor, tuning_) ? stored_.end() : stored_.find(tensor.name);
    const bool is_experts = tensor.role == spec::TensorRole::kExperts;
    if ((keeps_ || (options_ && is_experts)) && kept != stored_.end())
      return static_cast<int64_t>(kept->second);
    if (quantised_.contains(tensor.name)) return packed_bytes(tensor, *options_);
    return tensor.numel() * element_bytes_;
  }

 private:
  const config::TuningConfig& tuning_;
  int64_t element_bytes_;
  const StoredBytes& stored_;
  bool keeps_;
  std::set<std::string> not_frozen_;
  std::optional<QuantOptions> options_;
  std::set<std::string> quantised_;
};

}  // namespace

int64_t base_bytes(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                   int64_t element_bytes, const StoredBytes& stored, const TowerUse& tower) {
  const BaseFormat format(arch, tuning, element_bytes, stored, tower);
  int64_t total = 0;
  for (const spec::TensorSpec& tensor : with_tower(spec::tensor_specs(arch), arch, tower))
    total += format.bytes(tensor);
  return total;
}

namespace {

/// Trained values of the text model, and of each unit before its embedding, in a run that trains an adapter.
struct TrainedValues {
  int64_t of_text = 0;
  std::vector<int64_t> of_inputs;
};

/// Bytes of the whole model on one device.
struct WholeBytes {
  int64_t base = 0;       ///< frozen
  int64_t masters = 0;    ///< fp32
  int64_t copies = 0;     ///< in the compute dtype; 0: that is fp32
  int64_t gradients = 0;  ///< fp32
  int64_t optimizer = 0;
  TrainedValues values;
};

/// What a unit (of the tower, the embedding, a layer, the head with its norm) holds.
struct UnitWeights {
  double base_bytes = 0;  ///< frozen
  double trained = 0;     ///< values
};

/// @param embedding, head their units
size_t unit_of(const spec::ArchSpec& arch, const spec::TensorSpec& tensor, size_t embedding,
               size_t head) {
  if (tensor.projector >= 0)
    return embedding - arch.projectors.size() + static_cast<size_t>(tensor.projector);
  if (tensor.unit != spec::VisionUnit::kNone)
    return static_cast<size_t>(tower_unit_of(arch, tensor));
  if (tensor.layer >= 0) return embedding + static_cast<size_t>(tensor.layer) + 1;
  const bool is_of_head =
      tensor.role == spec::TensorRole::kHead || tensor.role == spec::TensorRole::kNorm;
  return is_of_head ? head : embedding;
}

/// @param values of the whole model
std::vector<UnitWeights> unit_weights(const spec::ArchSpec& arch, const config::RunConfig& config,
                                      int64_t element_bytes, const StoredBytes& stored,
                                      const TrainedValues& values, const TowerUse& tower) {
  const bool trains_adapter = config.tuning.trains_adapter();
  const BaseFormat format(arch, config.tuning, element_bytes, stored, tower);
  const auto embedding = static_cast<size_t>(num_input_units(arch, tower));
  std::vector<UnitWeights> units(embedding + static_cast<size_t>(arch.num_layers) + 2);
  const size_t head = units.size() - 1;
  const std::set<std::string> in_full = trained_in_full(arch, config.tuning, tower);
  const bool has_own_head = arch.tie_word_embeddings && in_full.contains(head_weight());
  auto of_adapters = static_cast<double>(values.of_text);
  if (has_own_head) {
    units[head].trained = static_cast<double>(arch.vocab_size * arch.hidden_size);
    of_adapters -= units[head].trained;
  }
  for (const spec::TensorSpec& tensor : with_tower(spec::tensor_specs(arch), arch, tower)) {
    const bool is_trained = in_full.contains(tensor.name);
    const int64_t frozen = trains_adapter ? format.bytes(tensor)
                           : is_trained   ? 0
                                          : tensor.numel() * element_bytes;
    const UnitWeights of_tensor{.base_bytes = static_cast<double>(frozen),
                                .trained = is_trained ? static_cast<double>(tensor.numel()) : 0};
    if (tensor.unit == spec::VisionUnit::kNone && tensor.projector < 0)
      of_adapters -= of_tensor.trained;
    const bool is_shared =
        arch.tie_word_embeddings && !has_own_head && tensor.role == spec::TensorRole::kEmbedding;
    for (const size_t unit :
         {unit_of(arch, tensor, embedding, head), is_shared ? head : units.size()}) {
      if (unit == units.size()) continue;
      units[unit].base_bytes += of_tensor.base_bytes;
      units[unit].trained += of_tensor.trained;
    }
  }
  // An adapter is estimated as if every layer had the same part of it.
  if (trains_adapter) {
    for (size_t unit = embedding + 1; unit < head; ++unit)
      units[unit].trained += of_adapters / static_cast<double>(arch.num_layers);
    for (size_t unit = 0; unit < embedding; ++unit)
      units[unit].trained = static_cast<double>(values.of_inputs[unit]);
  }
  return units;
}

/// The largest two neighbours: a unit that is used, and the next one.
/// @param of_base, of_trained_value factors: whole bases, bytes for each trained value
int64_t two_units(const std::vector<UnitWeights>& units, double of_base, double of_trained_value) {
  const auto bytes = [&](size_t unit) {
    return of_base * units[unit].base_bytes + of_trained_value * units[unit].trained;
  };
  double largest = 0;
  for (size_t unit = 0; unit < units.size(); ++unit)
    largest = std::max(largest, bytes(unit) + (unit + 1 < units.size() ? bytes(unit + 1) : 0));
  return static_cast<int64_t>(largest);
}

/// Gloo's reduce-scatter sums a copy of a unit's gradients.   @return of the largest unit
int64_t copied_gradients(const std::vector<UnitWeights>& units) {
  double largest = 0;
  for (const UnitWeights& unit : units) largest = std::max(largest, unit.trained);
  return static_cast<int64_t>(largest) * kFp32Bytes;
}

/// Bytes for each trained value.
double per_value(const WholeBytes& whole, int64_t bytes) {
  const int64_t values = std::max<int64_t>(1, whole.masters / kFp32Bytes);
  return static_cast<double>(bytes) / static_cast<double>(values);
}

/// What passes read of the trained values.
int64_t bytes_of_passes(const WholeBytes& whole) {
  return whole.copies == 0 ? whole.masters : whole.copies;
}

/// @param gathers_masters of adapters: a rank has no part of the copies in the compute dtype, which
/// are made of gathered masters (`parallel::KeptValues`)
StaticMemory divided(const WholeBytes& whole, const config::Axes& axes,
                     const std::vector<UnitWeights>& units, bool base_on_host,
                     bool gathers_masters) {
  const auto share = [&](int64_t bytes) { return (bytes + axes.shards() - 1) / axes.shards(); };
  const int64_t passes = bytes_of_passes(whole);
  StaticMemory memory{
      .base = base_on_host ? std::min(whole.base, two_units(units, 1, 0)) : whole.base,
      .trainable = passes + share(whole.masters + whole.copies),
      .gradients = share(whole.gradients),
      .optimizer = share(whole.optimizer)};
  if (axes.level == config::ShardLevel::kOptimizer) memory.gradients += whole.gradients;
  if (axes.level == config::ShardLevel::kGradients)
    memory.gathered = two_units(units, 0, kFp32Bytes);
  if (!axes.shards_weights()) return memory;
  memory.base = base_on_host ? 0 : share(whole.base);
  memory.trainable = share(whole.masters + (gathers_masters ? 0 : whole.copies));
  const int64_t gathered = gathers_masters ? whole.masters + whole.copies : passes;
  memory.gathered = two_units(units, 1, per_value(whole, gathered + whole.gradients));
  return memory;
}

/// Trained values, their gradients and the optimizer's state are in host memory. Beside two units the
/// device has two parts of gradients: a sum over ranks, and that over earlier micro-batches.
StaticMemory with_trained_on_host(const WholeBytes& whole, int64_t shards,
                                  const std::vector<UnitWeights>& units, bool base_on_host) {
  const auto share = [&](int64_t bytes) { return (bytes + shards - 1) / shards; };
  const bool gathers_base = shards > 1 || base_on_host;
  return {.base = base_on_host ? 0 : share(whole.base),
          .gathered = two_units(units, gathers_base ? 1 : 0,
                                per_value(whole, bytes_of_passes(whole) + whole.gradients)) +
                      two_units(units, 0, per_value(whole, share(whole.gradients)))};
}

}  // namespace

namespace {

/// The stored bytes of the parts that one device has.
StoredBytes device_bytes(const spec::ArchSpec& arch, const config::Axes& axes,
                         const StoredBytes& stored) {
  if (axes.tp == 1) return stored;
  StoredBytes parts = stored;
  for (const auto& [name, slice] : spec::slices_of(arch, {.rank = axes.tp - 1, .size = axes.tp})) {
    if (const auto found = parts.find(name); found != parts.end())
      found->second = found->second * static_cast<uint64_t>(slice.size()) /
                      static_cast<uint64_t>(slice.whole_size);
  }
  return parts;
}

}  // namespace

namespace {

/// Adds what trains of the image side, and the projectors of features.   @return values of each unit
std::vector<int64_t> add_inputs(const spec::ArchSpec& arch, const config::RunConfig& config,
                                const TowerUse& tower, Trained& trained) {
  const auto embedding = static_cast<size_t>(num_input_units(arch, tower));
  std::vector<int64_t> values(embedding);
  if (tower.is_loaded) {
    const TowerTraining training(arch, config.tuning, tower);
    for (const spec::TensorSpec& tensor : tower_tensors(arch)) {
      const int64_t before = trained.values();
      add_tower_tensor(tensor, training, config.tuning.lora, trained);
      values[static_cast<size_t>(tower_unit_of(arch, tensor))] += trained.values() - before;
    }
  }
  for (const spec::TensorSpec& tensor : spec::tensor_specs(arch)) {
    if (tensor.projector < 0 || !tower.parts.projector) continue;
    trained.add(tensor.shape, tensor.role);
    values[unit_of(arch, tensor, embedding, embedding)] += tensor.numel();
  }
  return values;
}

WholeBytes whole_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                       int64_t element_bytes, const StoredBytes& stored,
                       const DeviceShare& device) {
  int64_t base = 0;
  Trained trained(config.train);
  TrainedValues values;
  if (config.tuning.trains_adapter()) {
    if (device.tower.parts.language) trained = lora_values(arch, config);
    values.of_text = trained.values();
    values.of_inputs = add_inputs(arch, config, device.tower, trained);
    base = base_bytes(arch, config.tuning, element_bytes, stored, device.tower);
  } else {
    const TrainedTensors tensors = trained_tensors(arch, config, device.tower);
    trained = tensors.trained;
    base = tensors.frozen_values * element_bytes;
  }
  const config::OptimizerInfo& optimizer = config::optimizer_info(config.train.optimizer);
  return {.base = base,
          .masters = trained.values() * kFp32Bytes,
          .copies = element_bytes == kFp32Bytes ? 0 : trained.values() * element_bytes,
          .gradients = trained.values() * kFp32Bytes,
          .optimizer = device.on_gpu && optimizer.is_on_host() ? optimizer.device_bytes
                                                               : trained.state_bytes(),
          .values = std::move(values)};
}

/// @param start of the whole
double bytes_of(const UnitWeights& weights, const WholeBytes& whole, int64_t start) {
  return weights.base_bytes + per_value(whole, whole.masters + whole.copies + whole.gradients +
                                                   whole.optimizer + start) *
                                  weights.trained;
}

/// The units of each stage; the first one has the tower.   @pre the run has stages
std::vector<std::vector<UnitWeights>> units_of_stages(const spec::ArchSpec& arch,
                                                      const config::RunConfig& config,
                                                      const std::vector<UnitWeights>& units) {
  const std::vector<int64_t> firsts = stages_of(arch, config);
  const auto embedding = static_cast<int64_t>(units.size()) - firsts.back();
  std::vector<std::vector<UnitWeights>> stages;
  for (size_t stage = 0; stage + 1 < firsts.size(); ++stage)
    stages.emplace_back(units.begin() + (stage == 0 ? 0 : embedding + firsts[stage]),
                        units.begin() + embedding + firsts[stage + 1]);
  return stages;
}

/// What one stage holds of the whole. Where the embedding and a tied head are together, they share it.
WholeBytes bytes_of_stage(const spec::ArchSpec& arch, const std::vector<UnitWeights>& stage,
                          size_t num_stages, const WholeBytes& whole) {
  UnitWeights sum;
  for (const UnitWeights& unit : stage) {
    sum.base_bytes += unit.base_bytes;
    sum.trained += unit.trained;
  }
  if (arch.tie_word_embeddings && num_stages == 1) {
    const UnitWeights& embedding = stage[whole.values.of_inputs.size()];
    sum.base_bytes -= embedding.base_bytes;
    sum.trained -= embedding.trained;
  }
  const auto of_trained = [&](int64_t bytes) {
    return static_cast<int64_t>(per_value(whole, bytes) * sum.trained);
  };
  return {.base = static_cast<int64_t>(sum.base_bytes),
          .masters = of_trained(whole.masters),
          .copies = of_trained(whole.copies),
          .gradients = of_trained(whole.gradients),
          .optimizer = of_trained(whole.optimizer)};
}

/// Where the parts of a run are.
struct Places {
  bool on_gpu = false, base_on_host = false, trained_on_host = false;
};

/// The initial trained values that a device keeps for the reference model: what passes read of them,
/// or, of parts, what is gathered (`parallel::Strategy::keep_start`).
int64_t start_bytes(const WholeBytes& whole, const config::RunConfig& config,
                    const Places& places) {
  if (!config::keeps_start(config) || places.trained_on_host) return 0;
  if (whole.copies == 0) return whole.masters / config.parallel.axes.shards();
  const bool trains_adapter = config.tuning.trains_adapter(),
             reads_masters = config.tuning.backend == config::TuningBackend::kBnb,
             are_parts = config.parallel.axes.shards() > 1 || places.base_on_host;
  if (are_parts)
    return (trains_adapter || reads_masters ? whole.masters : whole.copies) /
           config.parallel.axes.shards();
  const bool has_magnitudes = trains_adapter && config.tuning.lora.dora;
  return whole.copies + (reads_masters || has_magnitudes ? whole.masters : 0);
}

/// What a device with these units holds, without the start.
StaticMemory held_without_start(const WholeBytes& whole, const config::RunConfig& config,
                                const std::vector<UnitWeights>& units, const Places& places) {
  const config::Axes& axes = config.parallel.axes;
  if (places.trained_on_host)
    return with_trained_on_host(whole, axes.shards(), units, places.base_on_host);
  if (axes.shards() == 1)
    return {.base = places.base_on_host ? std::min(whole.base, two_units(units, 1, 0)) : whole.base,
            .trainable = whole.masters + whole.copies,
            .gradients = whole.gradients,
            .optimizer = whole.optimizer};
  StaticMemory memory =
      divided(whole, axes, units, places.base_on_host, config.tuning.trains_adapter());
  if (!places.on_gpu) memory.gathered += copied_gradients(units);
  return memory;
}

StaticMemory held_on_device(const WholeBytes& whole, const config::RunConfig& config,
                            const std::vector<UnitWeights>& units, const Places& places) {
  StaticMemory memory = held_without_start(whole, config, units, places);
  memory.start = start_bytes(whole, config, places);
  return memory;
}

/// Dense joint linears of a GPU have room for adapters in the bytes of their unit.
/// @return bytes of all layers
int64_t add_joint_adapters(std::vector<UnitWeights>& units, const StepContext& step) {
  if (step.config.tuning.quantises_base() || step.config.tuning.keeps_blocks()) return 0;
  int64_t all = 0;
  const size_t first_layer = units.size() - 1 - static_cast<size_t>(step.arch.num_layers);
  for (int64_t layer = 0; layer < step.arch.num_layers; ++layer) {
    const int64_t bytes = joint_adapter_bytes(step, layer);
    units[first_layer + static_cast<size_t>(layer)].base_bytes += static_cast<double>(bytes);
    all += bytes;
  }
  return all;
}

}  // namespace

namespace {

/// Without a teacher.
StaticMemory memory_of_model(const spec::ArchSpec& whole_arch, const config::RunConfig& config,
                             int64_t element_bytes, const StoredBytes& whole_stored,
                             const DeviceShare& device) {
  const config::Axes& axes = config.parallel.axes;
  const spec::ArchSpec arch = device_arch(whole_arch, axes);
  const StoredBytes stored = device_bytes(whole_arch, axes, whole_stored);
  WholeBytes whole = whole_bytes(arch, config, element_bytes, stored, device);
  const config::OffloadConfig& offload = config.parallel.offload;
  const Places places{.on_gpu = device.on_gpu,
                      .base_on_host = device.on_gpu && offload.base == config::Offload::kCpu,
                      .trained_on_host = device.on_gpu && offload.params == config::Offload::kCpu};
  std::vector<UnitWeights> units;
  if (places.base_on_host || places.trained_on_host || axes.has_stages() || axes.shards() > 1)
    units = unit_weights(arch, config, element_bytes, stored, whole.values, device.tower);
  if ((axes.shards_weights() && axes.shards() > 1) || places.base_on_host)
    whole.base += add_joint_adapters(
        units, {whole_arch,
                config,
                {.element_bytes = element_bytes, .on_gpu = device.on_gpu, .tower = device.tower}});
  if (!axes.has_stages()) return held_on_device(whole, config, units, places);
  const auto stages = units_of_stages(whole_arch, config, units);
  StaticMemory largest;
  for (const std::vector<UnitWeights>& stage : stages) {
    const StaticMemory memory =
        held_on_device(bytes_of_stage(arch, stage, stages.size(), whole), config, stage, places);
    if (memory.total() > largest.total()) largest = memory;
  }
  return largest;
}

}  // namespace

StaticMemory static_memory(const spec::ArchSpec& arch, const config::RunConfig& config,
                           int64_t element_bytes, const StoredBytes& stored,
                           const DeviceShare& device) {
  StaticMemory memory = memory_of_model(arch, config, element_bytes, stored, device);
  if (device.teacher) add_teacher(*device.teacher, config, element_bytes, device, memory);
  return memory;
}

std::vector<double> unit_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                               int64_t element_bytes, const StoredBytes& stored,
                               const DeviceShare& device) {
  const WholeBytes whole = whole_bytes(arch, config, element_bytes, stored, device);
  const int64_t start = start_bytes(whole, config, {.on_gpu = device.on_gpu});
  std::vector<double> bytes;
  for (const UnitWeights& unit :
       unit_weights(arch, config, element_bytes, stored, whole.values, device.tower))
    bytes.push_back(bytes_of(unit, whole, start));
  const auto embedding = bytes.begin() + num_input_units(arch, device.tower);
  *embedding += std::accumulate(bytes.begin(), embedding, 0.0);
  bytes.erase(bytes.begin(), embedding);
  return bytes;
}

int64_t static_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                     int64_t element_bytes, const StoredBytes& stored, const DeviceShare& device) {
  return static_memory(arch, config, element_bytes, stored, device).total();
}

namespace {

constexpr double kUsable = 0.8;  // of a device's memory; the rest is for what is not estimated

/// Bytes of a micro-batch of some packed sequences (objectives on pairs: of pairs, each in one bin).
int64_t step_bytes(const spec::ArchSpec& arch, const config::RunConfig& config, int64_t bins,
                   int64_t element_bytes, const DeviceShare& device) {
  const int64_t sequences = config.train.sequences();
  return step_memory(arch, config,
                     {.tokens = bins * sequences * config.model.max_seq_len,
                      .element_bytes = element_bytes,
                      .on_gpu = device.on_gpu,
                      .tower = device.tower,
                      .images = device.images.times(bins),
                      .teacher = device.teacher})
      .peak();
}

config::RunConfig divided_run(config::RunConfig config, const StrategySizes& sizes,
                              const RunDevices& devices) {
  config::ParallelConfig& parallel = config.parallel;
  parallel.strategy = sizes.strategy;
  parallel.pp = sizes.pp, parallel.tp = sizes.tp;
  config::resolve_axes(parallel, devices.world_size, devices.local_world_size);
  return config;
}

/// The plan for micro-batches of so many full sequences. Launcher, workers and memory-check know
/// different numbers of threads, and must choose the same.
MemoryPlan plan_of(const spec::ArchSpec& arch, config::RunConfig config, RunDevices devices,
                   const StoredBytes& stored, int64_t bins) {
  devices.tokens_of_bin = 0, devices.threads = 1;
  config.data.bin_tokens.value.reset();
  config.train.batch_size.value = bins;
  return memory_plan(arch, config, devices, stored);
}

/// Whether a step has as many bins as its devices and sizes say. With fewer parts of the batch at a
/// time it would have another batch.
bool has_given_batch(const config::TrainConfig& train) {
  return train.batch_size.value && train.grad_accum.value;
}

/// What `auto` tries, in order.
std::vector<StrategySizes> auto_choices(const config::RunConfig& config,
                                        const RunDevices& devices) {
  // With trained weights in host memory a process of ddp would have all of them there.
  const bool keeps_whole = config.parallel.offload.params == config::Offload::kNone;
  std::vector<config::StrategyRow> rows;
  for (const config::StrategyRow& row : config::kStrategies)
    if (row.by_auto && is_tried(row, config.tuning, devices) &&
        (keeps_whole || row.level == config::ShardLevel::kWeights))
      rows.push_back(row);
  std::ranges::stable_sort(rows, {}, [](const config::StrategyRow& row) {
    return std::pair(row.level, !row.shards_in_machine);
  });
  std::vector<StrategySizes> choices;
  for (const config::StrategyRow& row : rows) choices.push_back({.strategy = row.strategy});
  if (!devices.on_gpu || has_given_batch(config.train)) return choices;
  for (const StrategySizes& sizes : combinations(devices.world_size, devices.local_world_size))
    choices.push_back(sizes);
  choices.push_back(tensor_in_machine(devices.world_size, devices.local_world_size));
  choices.push_back({.strategy = config::Strategy::kPipeline});
  return choices;
}

}  // namespace

StrategySizes auto_strategy(const spec::ArchSpec& arch, const config::RunConfig& config,
                            const RunDevices& devices, const StoredBytes& stored,
                            const StoredBlocks& blocks) {
  if (devices.world_size == 1) return {.strategy = config::Strategy::kSingle};
  const auto memory = static_cast<int64_t>(devices.memory_bytes);
  const auto usable = static_cast<int64_t>(kUsable * static_cast<double>(memory));
  const int64_t bins = config.train.batch_size.value.value_or(1);
  StrategySizes least{.strategy = config::Strategy::kDdp};
  int64_t least_bytes = INT64_MAX;
  for (const StrategySizes& sizes : auto_choices(config, devices)) {
    const config::RunConfig divided = divided_run(config, sizes, devices);
    if (!refusal_of(arch, divided, blocks).empty()) continue;
    const MemoryPlan plan = plan_of(arch, divided, devices, stored, bins);
    const int64_t needed = plan.needed();
    const int64_t of_one =
        bins == 1 ? plan.tensors() : plan_of(arch, divided, devices, stored, 1).tensors();
    if (of_one <= usable && (bins == 1 || needed <= memory)) return sizes;
    if (needed < least_bytes) least = sizes, least_bytes = needed;
  }
  return least;
}

int64_t max_micro_batch(const spec::ArchSpec& arch, const config::RunConfig& config,
                        uint64_t memory_bytes, int64_t element_bytes, const StoredBytes& stored,
                        const DeviceShare& device) {
  const int64_t left = static_cast<int64_t>(kUsable * static_cast<double>(memory_bytes)) -
                       static_bytes(arch, config, element_bytes, stored, device);
  int64_t bins = 1;
  while (bins < config::kMaxAutoMicroBatch &&
         step_bytes(arch, config, bins + 1, element_bytes, device) <= left)
    ++bins;
  return bins;
}

}  // namespace sftrun::plan
