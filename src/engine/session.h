#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model_division.h"
#include "rank.h"
#include "sftrun/app/requests/parts.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/input_records.h"
#include "sftrun/data/text_model.h"
#include "sftrun/images/processor.h"
#include "sftrun/model/decoder.h"
#include "sftrun/model/stage.h"
#include "sftrun/parallel/mesh_copy.h"
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
/// @param gpu index of the GPU
Compute choose_compute(const app::ComputeRequest& request, int gpu);
std::string dtype_name(at::ScalarType dtype);  ///< "fp32", "bf16", "fp16"
std::string device_name(at::Device device);

/// Starts the threads of this process: the request's, else OMP_NUM_THREADS, else all that it may use.
/// @throws OutOfMemoryError if they cannot be started
void set_threads(std::optional<int64_t> asked = {});

/// How to build the decoder that a configuration trains.
/// @param checkpoint what it will hold; null: random weights
model::DecoderOptions decoder_options(const config::RunConfig& config, const Compute& compute,
                                      const weights::Checkpoint* checkpoint);

/// @pre the request has an input
config::DataSource input_of(const app::InputRequest& request);

/// A model opened for a command that does not train.
struct LoadedModel {
  std::shared_ptr<const weights::Checkpoint> checkpoint;
  data::TextModel text;
  std::unique_ptr<ModelDivision> division;  ///< null: this process has the whole model
  std::unique_ptr<model::Decoder> decoder;  ///< with its adapter, if one was named
  std::filesystem::path trained;  ///< folder of the adapter, or else folder or file of the model
  at::ScalarType dtype = at::kFloat;  ///< it computes in
  // Null without a division.
  std::unique_ptr<parallel::Strategy> strategy;
  std::unique_ptr<parallel::MeshCopy> copy;

  /// The units of this rank.   @pre this object outlives it
  model::Stage stage() const {
    return copy ? model::Stage(*decoder, copy->hooks(), copy->links()) : model::Stage(*decoder);
  }
  /// The places of the ranks: as the model is divided, or each with a copy.
  parallel::Mesh mesh(const Rank& rank) const {
    return division ? division->mesh()
                    : parallel::Mesh::replicated(rank.env().world_size, rank.env().rank);
  }
};

/// Weights that several adapters of one base model use.
class SharedBases {
 public:
  /// For a base that is held in this form.
  std::shared_ptr<model::SharedWeights> of(const model::BaseForm& form);

 private:
  std::vector<std::pair<model::BaseForm, std::shared_ptr<model::SharedWeights>>> bases_;
};

/// An adapter's base is held as its run held it, unless `as_stored`. The chat template gets the
/// request's variables, and those with which the adapter or model was trained; images have the limits of that run.
/// @param local_rank index of the GPU
/// @param bases of the other adapters of this model; null: the model has weights of its own
/// @param is_first of the command's models: a line says dtype and device
LoadedModel load_model(const app::ModelRequest& request, const app::ComputeRequest& asked,
                       int local_rank = 0, SharedBases* bases = nullptr, bool is_first = true);
/// The same of the part of the model that this rank has. All ranks call it.
/// @param parallel with resolved axes   @param loaded receives the model
/// @param bases, is_first as above
/// @param form how the base is held; null: as its files or the adapter say
/// @return 0, or the exit code of a stop that any rank was asked for
int load_part(const app::ModelRequest& request, const app::ComputeRequest& asked,
              const config::ParallelConfig& parallel, Rank& rank, LoadedModel& loaded,
              SharedBases* bases = nullptr, bool is_first = true,
              const config::TuningConfig* form = nullptr);
/// @throws ConfigError for a model that embeds texts
void refuse_embedder(const LoadedModel& model);
/// @throws ConfigError for a model with a head of scores, or one that embeds texts: it gives no tokens
void require_language_head(const LoadedModel& model);
/// Warns of the request's variables that change no text (data::idle_template_flag).
void warn_of_idle_template_flag(const app::ModelRequest& request,
                                const std::vector<const data::TextModel*>& models,
                                bool renders = true);
data::TextModel text_model_of(const weights::Checkpoint& checkpoint,
                              const std::string& configured_template);
/// Lets a model's text side read images, where its folder has an image processor.
/// @throws ConfigError as data::image_input_of
void add_image_input(data::TextModel& text, const std::filesystem::path& folder,
                     const spec::ArchSpec& arch, const images::ImageCaps& caps);
/// How a model reads texts, images, and, where it has projectors, features.
/// @param folder of the model, or its file   @param configured_template as text_model_of
/// @throws ConfigError as data::image_input_of and data::feature_input_of
data::TextModel full_text_model(const weights::Checkpoint& checkpoint,
                                const std::filesystem::path& folder,
                                const std::string& configured_template,
                                const images::ImageCaps& caps);
bool reads_images(const data::TextModel& text);
/// For a model that reads images.
void warn_of_unread_images(const std::vector<data::InputRecord>& records,
                           const data::TextModel& text);
/// @param where the images are named   @pre add_image_input(text, folder, …)
/// @throws Error why the model reads none
void require_reads_images(const data::TextModel& text, const spec::ArchSpec& arch,
                          const std::filesystem::path& folder, const std::string& where);
/// Lets a decoder with a tower load the images of its micro-batches.   @param activity may be null
void read_images(model::Decoder& decoder, const data::TextModel& text, int num_threads,
                 Activity* activity = nullptr);

}  // namespace sftrun::engine
