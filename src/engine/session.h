#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sftrun/config/held_base.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/text_model.h"
#include "sftrun/model/decoder.h"
#include "sftrun/weights/checkpoint.h"

/// What every engine command does first: choose device, dtype and threads, open the model.
namespace sftrun::engine {

struct Compute {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
};

/// @param device "auto", "cpu", "cuda"
/// @param dtype "auto", "fp32", "bf16", "fp16"
/// @param local_rank index of the GPU
/// Loads the CUDA library if it is needed.
/// @throws DeviceError when CUDA was requested and is not available
Compute choose_compute(const std::string& device, const std::string& dtype, int local_rank);
std::string dtype_name(at::ScalarType dtype);  ///< "fp32", "bf16", "fp16"
std::string device_name(at::Device device);

/// Threads of this process: the request's, else OMP_NUM_THREADS, else all that it may use.
void set_threads(const nlohmann::json& request);

/// How to build the decoder that a configuration trains.
/// @param checkpoint what it will hold; null: random weights
model::DecoderOptions decoder_options(const config::RunConfig& config, const Compute& compute,
                                      const weights::Checkpoint* checkpoint);

/// How a run that trains an adapter holds its base.   @param fingerprint of the base's weights
config::HeldBase held_base(const config::RunConfig& config, const Compute& compute,
                           const weights::Checkpoint& checkpoint, const std::string& fingerprint);
/// How the adapter's run held `base` where it quantised it as it was loaded. nullopt: as its files
/// have it, what PiSSA left of it, another base, or the adapter does not say.
std::optional<config::HeldBase> quantised_by_run(const std::filesystem::path& adapter,
                                                 const weights::Checkpoint& base);
/// Where the adapter says what it was trained beside, and that is neither `base` nor a copy of it.
void warn_of_another_base(const std::filesystem::path& adapter, const weights::Checkpoint& base);
/// Of what the checkpoint holds in fewer bits, the format of most values; empty: nothing.
std::string packed_format(const weights::Checkpoint& checkpoint);
/// What most of the base's matrices are in then: "nf4", "Q4_1", …; empty: in the run's dtype.
std::string held_form(const config::TuningConfig& tuning, const weights::Checkpoint& checkpoint);

/// Of weights that are written.   @param wanted f32, f16 or bf16; auto: as the base has them
DType dtype_to_store(const std::string& wanted, const weights::Checkpoint& base);

/// A model opened for a command that does not train.
struct LoadedModel {
  std::shared_ptr<const weights::Checkpoint> checkpoint;
  data::TextModel text;
  std::unique_ptr<model::Decoder> decoder;  ///< with its adapter, if one was named
};
/// Reads "model", "adapter", "as_stored", "device", "dtype", "threads" of the request. An adapter's
/// base is held as its run held it, unless "as_stored".
LoadedModel load_model(const nlohmann::json& request);
data::TextModel text_model_of(const weights::Checkpoint& checkpoint,
                              const std::string& configured_template);

/// A string or number of the request; nullopt when null or absent.
template <typename T>
std::optional<T> get(const nlohmann::json& request, const char* key) {
  const auto found = request.find(key);
  if (found == request.end() || found->is_null()) return std::nullopt;
  return found->get<T>();
}

}  // namespace sftrun::engine
