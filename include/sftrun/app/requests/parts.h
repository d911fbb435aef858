#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/app/request_json.h"
#include "sftrun/config/places.h"
#include "sftrun/config/run_config.h"

/// Parts of the requests of several commands. Their keys are among those of the request.
namespace sftrun::app {

struct ComputeRequest {
  std::string device = "auto";     ///< auto, cuda, cpu
  std::string dtype = "auto";      ///< auto, fp32, bf16, fp16
  std::optional<int64_t> threads;  ///< of the CPU; null: all that the process may use

  SFTRUN_FIELDS(device, dtype, threads)
};

/// Images of one size in every packed sequence.
struct PlannedImages {
  int64_t of_sequence = 0;
  int64_t width = 0, height = 0;  ///< pixels, before the image processor

  SFTRUN_FIELDS(of_sequence, width, height)
};

/// How a model is divided, as keys of `parallel` in a configuration. null: not given.
struct ParallelRequest {
  std::optional<std::string> strategy;  ///< tensor, pipeline, fsdp, device_map
  std::optional<int64_t> tp, pp;

  SFTRUN_FIELDS(strategy, tp, pp)
};

/// The processes of a command that uses a model.
struct RanksRequest {
  ComputeRequest compute;
  std::optional<ParallelRequest> parallel;  ///< null: each process has the whole model
  /// For logs, for what is finished until all is, and for the result that the launcher prints; null:
  /// there is one process, which keeps nothing.
  std::optional<std::string> folder;
  config::Places places;  ///< where keys of the configuration were set, for errors
  /// No key: the stages of the pipeline are threads of one process.
  bool in_one_process = false;

  SFTRUN_FIELDS(compute, parallel, folder, places)
};

struct ModelRequest {
  std::string model;                   ///< path
  std::optional<std::string> adapter;  ///< directory
  bool as_stored = false;  ///< the base in the format of its files, not as it was trained
  /// JSON text: variables of the chat template, over those of the training run
  std::optional<std::string> chat_template_kwargs;
  /// No key: eval reads texts and images as this configuration says, and not as the adapter or model was trained.
  std::shared_ptr<const config::RunConfig> read_as;
  /// No key: the command knows whether its prompts have images. A model that reads none has no tower.
  bool takes_images = false;

  SFTRUN_FIELDS(model, adapter, as_stored, chat_template_kwargs)
};

/// A model that clients or the user choose by its name.
struct NamedAdapter {
  std::string name;
  std::optional<std::string> adapter;  ///< directory; null: the base model

  SFTRUN_FIELDS(name, adapter)
};

/// A model and adapters of it.
struct NamedModelsRequest {
  ModelRequest base;                 ///< without an adapter
  std::vector<NamedAdapter> models;  ///< not empty; the first is used where none is named

  ModelRequest one(const NamedAdapter& named) const {
    ModelRequest request = base;
    request.adapter = named.adapter;
    return request;
  }

  SFTRUN_FIELDS(base, models)
};

/// Records to read.
struct InputRequest {
  std::optional<std::string> input;  ///< null: none; "-": standard input
  std::string subset, split;         ///< empty: the default

  SFTRUN_FIELDS(input, subset, split)
};

/// How a model that is written is quantised.
struct QuantRequest {
  std::optional<int64_t> block_size;  ///< values that share a scale; null: the base's, else 64
  bool no_double_quant = false;
  std::vector<std::string> skip_modules;

  SFTRUN_FIELDS(block_size, no_double_quant, skip_modules)
};

struct SamplingRequest {
  int64_t max_new_tokens = 256;
  double temperature = 0;  ///< 0: greedy
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p, repetition_penalty;
  std::vector<std::string> stop;  ///< texts before which an answer ends
  std::optional<int64_t> seed;

  SFTRUN_FIELDS(max_new_tokens, temperature, top_p, top_k, min_p, repetition_penalty, stop, seed)
};

}  // namespace sftrun::app
