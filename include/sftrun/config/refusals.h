#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

/// What runs that are divided over devices cannot do, in one table. The validation of settings, the
/// resolution of a run, `parallel.strategy: auto` and memory-check loop over it, and
/// docs/parallelism.md has its rows.
namespace sftrun::config {

/// Ways in which a run is divided, by their words in the YAML. `fsdp` is every strategy that divides
/// weights.
struct Divisions {
  bool pp = false, device_map = false, tp = false, cp = false;
  bool zero1 = false, zero2 = false, fsdp = false;

  /// Whether a run is divided in one of these ways.
  bool has_any_of(const Axes& axes) const;
  /// The setting that divides a run so, with or without devices for it ("parallel.tp",
  /// "parallel.strategy: zero1"); empty: there is none.
  std::string setting(const ParallelConfig& parallel) const;
};

/// What the table asks of a model. plan::model_facts has it of an ArchSpec.
struct ModelFacts {
  bool shares_keys = false;           ///< some layers read the keys and values of others
  bool has_per_layer_inputs = false;  ///< one embedding gives an input to every layer
  bool norms_whole_queries = false;   ///< over all heads together
  bool balances_experts = false;      ///< the run's loss has the routers' load-balancing term
};

/// What must be known to say that a row applies.
enum class KnownBy : uint8_t {
  kSettings,   ///< the settings, whatever the number of processes
  kProcesses,  ///< the number of processes: one alone divides nothing
  kModel,      ///< that, and the model
};

struct Refusal {
  Divisions where;
  KnownBy known_by;
  const char* key;  ///< of the setting that is refused there; "": the model is
  bool (*applies)(const RunConfig& run, const ModelFacts& model);
  /// `{by}`, `{optimizer}` and `{backend}` stand for the setting that divides the run, and values.
  const char* message;
  std::string (*fix)(const ParallelConfig& parallel);
  std::vector<std::string> (*values)() = nullptr;  ///< of the key: a message has one of them
};

/// The rows. Of several that apply to a setting the first one counts.
std::span<const Refusal> refusals();

std::string message_of(const Refusal& refusal, const RunConfig& run);

/// The first row that refuses these axes to a run; nullptr: none does.   @pre run.parallel has the
/// settings of the axes
const Refusal* find_refusal(const RunConfig& run, const Axes& axes, const ModelFacts& model);

/// Whether rows ask for the model before they say that these axes are possible.
bool depends_on_model(const Axes& axes);

/// Where the configuration divides a run in one of these ways, for errors.
using PlaceOfDivision = std::function<std::string(const Divisions& where)>;

/// @param axes of the run
/// @throws ConfigError for the first row known by `known_by` that refuses them
void require_possible(const RunConfig& run, const Axes& axes, KnownBy known_by,
                      const ModelFacts& model, const PlaceOfDivision& place_of);

/// "parallel.strategy fsdp without parallel.tp": beside another strategy, the settings that are
/// named would still divide the run.   @param strategies "fsdp", "ddp or zero1"
std::string strategy_instead(const ParallelConfig& parallel, const char* strategies);

/// The key of a setting "parallel.strategy: tensor" or "parallel.tp".
std::string key_of_setting(const std::string& setting);

}  // namespace sftrun::config
