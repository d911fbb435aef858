#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/name_list.h"
#include "sftrun/core/rows.h"
#include "sftrun/core/tensor_role.h"

/// The optimizers: one row each, with everything that needs no LibTorch. Configuration, plan, import,
/// help and checks loop over the rows; src/train/optimizers/makers.h names the class of each.
namespace sftrun::config {

enum class Optimizer {
  kAdamW,
  kAdamW8bit,
  kPagedAdamW,
  kPagedAdamW8bit,
  kSgd,
  kLion,
  kAdafactor,
  kMuon
};

/// Whether ranks can divide the state of a matrix among them.
enum class StateDivision : uint8_t {
  kAny,     ///< each value is updated by itself
  kRanges,  ///< only ranges of consecutive values (dp_shard), not columns (tp): blocks share a scale
  kNone,    ///< each update is computed from the whole matrix
};

/// What the size of an optimizer's state depends on.
struct TrainedTensor {
  TensorRole role;
  std::span<const int64_t> shape;  ///< as model files have it
  double momentum = 0;             ///< of the run, resolved

  int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
};

/// A tensor of the state. Checkpoints call it `name`.<parameter>.
struct StateSize {
  std::string_view name;
  int64_t values = 0;
  int64_t bytes_per_value = 4;  ///< fp32
};

/// A combination of settings that an optimizer refuses.
struct SettingRefusal {
  const char *message, *key, *fix;
};

struct OptimizerInfo {
  Optimizer optimizer;
  std::string_view name;    ///< `train.optimizer`
  NameList aliases = {};    ///< accepted, too: transformers' OptimizerNames
  NameList deepspeed = {};  ///< `optimizer.type` in DeepSpeed's files
  /// Keys of `train` that it reads, beside those that all read (learning_rate, weight_decay, …).
  NameList settings = {};
  double momentum = 0;    ///< default, if it reads that setting
  bool nesterov = false;  ///< likewise
  StateDivision division = StateDivision::kAny;
  /// The tensors that it updates itself; null: all.
  bool (*updates)(TensorRole role) = nullptr;
  std::optional<Optimizer> others = {};  ///< updates the other tensors, and reads its own settings
  /// The same updates with the state in host memory: a run may resume with either. Of such an
  /// optimizer itself.
  std::optional<Optimizer> on_host = {};
  int64_t device_bytes =
      0;  ///< of an optimizer with the state in host memory: what a GPU holds of it
  std::optional<Optimizer> smaller = {};  ///< nearly the same updates with a smaller state
  std::vector<StateSize> (*state)(const TrainedTensor& tensor);
  /// @return null: the settings fit together
  std::optional<SettingRefusal> (*refusal)(double momentum, bool nesterov) = nullptr;

  constexpr bool is_on_host() const { return on_host == optimizer; }
  constexpr bool needs_whole_matrices() const { return division == StateDivision::kNone; }
  constexpr bool divides_columns() const { return division == StateDivision::kAny; }
  /// Whether any of the run's tensors may be updated with this key of `train`.
  constexpr bool reads(std::string_view setting) const;
};

/// Values of an 8-bit moment that share a scale (bitsandbytes' block).
inline constexpr int64_t kMomentBlock = 256;

/// adamw_8bit: embeddings, and tensors of fewer than 4096 values, keep moments in fp32, as with
/// bitsandbytes and transformers' Trainer.
constexpr bool has_8bit_moments(TensorRole role, int64_t numel) {
  constexpr int64_t kFewest = 4096;  // bitsandbytes' min_8bit_size
  return numel >= kFewest && role != TensorRole::kEmbedding;
}

/// Muon is for matrices inside the model; AdamW updates the others.
constexpr bool is_updated_by_muon(TensorRole role) {
  using enum TensorRole;
  return role == kLinear || role == kExperts || role == kLoraA || role == kLoraB ||
         role == kEmbeddingLora;
}

inline std::vector<StateSize> two_moments(const TrainedTensor& tensor) {
  return {{"exp_avg", tensor.numel()}, {"exp_avg_sq", tensor.numel()}};
}

inline std::vector<StateSize> two_moments_in_8_bits(const TrainedTensor& tensor) {
  const int64_t numel = tensor.numel(), blocks = (numel + kMomentBlock - 1) / kMomentBlock;
  if (!has_8bit_moments(tensor.role, numel)) return two_moments(tensor);
  return {{"exp_avg", numel, 1},
          {"exp_avg_absmax", blocks},
          {"exp_avg_sq", numel, 1},
          {"exp_avg_sq_absmax", blocks}};
}

inline std::vector<StateSize> one_moment(const TrainedTensor& tensor) {
  return {{"exp_avg", tensor.numel()}};
}

inline std::vector<StateSize> momentum_buffer(const TrainedTensor& tensor) {
  if (tensor.momentum == 0) return {};
  return {{"momentum_buffer", tensor.numel()}};
}

/// Means over rows and over columns of each matrix; one value per weight of a vector.
inline std::vector<StateSize> factored_moment(const TrainedTensor& tensor) {
  const auto& shape = tensor.shape;
  if (shape.size() < 2) return {{"exp_avg_sq", tensor.numel()}};
  return {{"exp_avg_sq_row", tensor.numel() / shape.back()},
          {"exp_avg_sq_col", tensor.numel() / shape[shape.size() - 2]}};
}

/// Muon has a buffer without momentum, too.
inline std::vector<StateSize> buffer_of_matrices(const TrainedTensor& tensor) {
  if (!is_updated_by_muon(tensor.role)) return two_moments(tensor);
  return {{"momentum_buffer", tensor.numel()}};
}

constexpr std::optional<SettingRefusal> nesterov_without_momentum(double momentum, bool nesterov) {
  if (!nesterov || momentum != 0) return std::nullopt;
  return SettingRefusal{"`train.nesterov` needs momentum, and `train.momentum` is 0",
                        "train.nesterov", "set train.momentum, for example to 0.9"};
}

inline constexpr NameList kAdamSettings = {"adam_beta1", "adam_beta2", "adam_epsilon"};
/// Both moments of two parts of four million values (AdamWConfig::values_of_part).
inline constexpr int64_t kPagedBytes = 64 << 20;

/// In the order of the enumerators.
inline constexpr auto kOptimizers = std::to_array<OptimizerInfo>({
    {.optimizer = Optimizer::kAdamW,
     .name = "adamw",
     .aliases = {"adamw_torch", "adamw_torch_fused", "adamw_hf"},
     .deepspeed = {"Adam", "AdamW"},
     .settings = kAdamSettings,
     .on_host = Optimizer::kPagedAdamW,
     .smaller = Optimizer::kAdamW8bit,
     .state = two_moments},
    {.optimizer = Optimizer::kAdamW8bit,
     .name = "adamw_8bit",
     .aliases = {"adamw_bnb_8bit"},
     .settings = kAdamSettings,
     .division = StateDivision::kRanges,
     .on_host = Optimizer::kPagedAdamW8bit,
     .state = two_moments_in_8_bits},
    {.optimizer = Optimizer::kPagedAdamW,
     .name = "paged_adamw",
     .aliases = {"paged_adamw_32bit"},
     .settings = kAdamSettings,
     .on_host = Optimizer::kPagedAdamW,
     .device_bytes = kPagedBytes,
     .state = two_moments},
    {.optimizer = Optimizer::kPagedAdamW8bit,
     .name = "paged_adamw_8bit",
     .settings = kAdamSettings,
     .division = StateDivision::kRanges,
     .on_host = Optimizer::kPagedAdamW8bit,
     .device_bytes = kPagedBytes,
     .state = two_moments_in_8_bits},
    {.optimizer = Optimizer::kSgd,
     .name = "sgd",
     .deepspeed = {"SGD"},
     .settings = {"momentum", "nesterov"},
     .state = momentum_buffer,
     .refusal = nesterov_without_momentum},
    {.optimizer = Optimizer::kLion,
     .name = "lion",
     .aliases = {"lion_32bit"},
     .deepspeed = {"Lion"},
     .settings = {"adam_beta1", "adam_beta2"},
     .state = one_moment},
    {.optimizer = Optimizer::kAdafactor,
     .name = "adafactor",
     .division = StateDivision::kNone,
     .state = factored_moment},
    {.optimizer = Optimizer::kMuon,
     .name = "muon",
     .deepspeed = {"Muon"},
     .settings = {"momentum", "nesterov", "muon_lr"},
     .momentum = 0.95,
     .nesterov = true,
     .division = StateDivision::kNone,
     .updates = is_updated_by_muon,
     .others = Optimizer::kAdamW,
     .state = buffer_of_matrices},
});

constexpr const OptimizerInfo& optimizer_info(Optimizer optimizer) {
  return kOptimizers[static_cast<size_t>(optimizer)];
}
static_assert(are_in_order(kOptimizers, &OptimizerInfo::optimizer));

constexpr bool OptimizerInfo::reads(std::string_view setting) const {
  return settings.contains(setting) ||
         (others && optimizer_info(*others).settings.contains(setting));
}

/// Of all rows together.   @param list a member with names, such as &OptimizerInfo::aliases
constexpr size_t count_names(NameList OptimizerInfo::*list) {
  size_t count = 0;
  for (const OptimizerInfo& info : kOptimizers) count += (info.*list).size();
  return count;
}
/// The names of the rows for which `holds` is true, in the order of the table.
template <class Property>
std::vector<std::string> optimizer_names(Property holds) {
  std::vector<std::string> names;
  for (const OptimizerInfo& info : kOptimizers)
    if (std::invoke(holds, info)) names.emplace_back(info.name);
  return names;
}

/// Keys of `train` that some optimizers read, in the order of the table.
std::vector<std::string_view> optimizer_settings();
/// The same updates with the state on the device of the weights.
Optimizer on_device(Optimizer optimizer);

}  // namespace sftrun::config
