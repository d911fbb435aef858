#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
/// @param local_rank index of the GPU
/// Loads the CUDA library if it is needed.
/// @throws DeviceError when CUDA was requested and is not available
/// @param dtype_setting the place of an error about it
Compute choose_compute(const std::string& device, config::DTypeChoice dtype, int local_rank,
                       const std::string& dtype_setting = "model.dtype");
/// @param dtype "auto", "fp32", "bf16", "fp16"
Compute choose_compute(const std::string& device, const std::string& dtype, int local_rank);
config::DTypeChoice dtype_choice(at::ScalarType dtype);
std::string dtype_name(at::ScalarType dtype);  ///< "fp32", "bf16", "fp16"
std::string device_name(at::Device device);

/// Starts the threads of this process: the request's, else OMP_NUM_THREADS, else all that it may use.
/// @throws OutOfMemoryError if they cannot be started
void set_threads(const nlohmann::ordered_json& request);

/// How to build the decoder that a configuration trains.
/// @param checkpoint what it will hold; null: random weights
model::DecoderOptions decoder_options(const config::RunConfig& config, const Compute& compute,
                                      const weights::Checkpoint* checkpoint);

/// --input, --subset and --split of a command.
config::DataSource input_of(const nlohmann::ordered_json& request);

/// A model opened for a command that does not train.
struct LoadedModel {
  std::shared_ptr<const weights::Checkpoint> checkpoint;
  data::TextModel text;
  std::unique_ptr<model::Decoder> decoder;  ///< with its adapter, if one was named
  at::ScalarType dtype = at::kFloat;        ///< it computes in
};

/// Weights that several adapters of one base model use.
class SharedBases {
 public:
  /// For a base that is held in this form.
  std::shared_ptr<model::SharedWeights> of(const model::BaseForm& form);

 private:
  std::vector<std::pair<model::BaseForm, std::shared_ptr<model::SharedWeights>>> bases_;
};

/// Reads "model", "adapter", "as_stored", "device", "dtype", "threads" of the request. An adapter's
/// base is held as its run held it, unless "as_stored". With "chat_template_kwargs", which is null or
/// the text of a JSON object, the chat template gets those variables and the ones with which the
/// adapter or model was trained.
/// @param local_rank index of the GPU
/// @param bases of the other adapters of this model; null: the model has weights of its own
LoadedModel load_model(const nlohmann::ordered_json& request, int local_rank = 0,
                       SharedBases* bases = nullptr);
/// Warns of the request's "chat_template_kwargs" that change no text (data::idle_template_flag).
void warn_of_idle_template_flag(const nlohmann::ordered_json& request,
                                const std::vector<const data::TextModel*>& models,
                                bool renders = true);
data::TextModel text_model_of(const weights::Checkpoint& checkpoint,
                              const std::string& configured_template);

/// A string or number of the request; nullopt when null or absent.
template <typename T>
std::optional<T> get(const nlohmann::ordered_json& request, const char* key) {
  const auto found = request.find(key);
  if (found == request.end() || found->is_null()) return std::nullopt;
  return found->get<T>();
}

}  // namespace sftrun::engine
