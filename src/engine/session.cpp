#include "session.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <tuple>

#include "cuda_library.h"
#include "memory_advice.h"
#include "openmp_threads.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/features.h"
#include "sftrun/data/image_input.h"
#include "sftrun/images/caps_file.h"
#include "sftrun/kernels/cuda_device.h"
#include "sftrun/kernels/memory.h"
#include "sftrun/launch/cpu_topology.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/model/base_form.h"
#include "sftrun/observe/system.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/train/image_loading.h"
#include "sftrun/weights/adapter_base.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/embedding_files.h"
#include "sftrun/weights/hf_text_files.h"
#include "spinning.h"

namespace sftrun::engine {
namespace {

config::DTypeChoice parse_dtype(const std::string& dtype) {
  return dtype == "fp32"   ? config::DTypeChoice::kFp32
         : dtype == "bf16" ? config::DTypeChoice::kBf16
         : dtype == "fp16" ? config::DTypeChoice::kFp16
                           : config::DTypeChoice::kAuto;
}

at::ScalarType choose_dtype(config::DTypeChoice dtype, at::Device device,
                            const std::string& setting) {
  switch (plan::resolved_dtype(dtype, device.is_cuda(), setting)) {
    case config::DTypeChoice::kBf16:
      return at::kBFloat16;
    case config::DTypeChoice::kFp16:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

/// Whether GPUs were found for this process, as the launcher does for its workers.
bool names_gpus() {
  const char* names = std::getenv("CUDA_VISIBLE_DEVICES");
  return names != nullptr && *names != '\0' && std::string_view(names) != "-1";
}

}  // namespace

Compute choose_compute(const std::string& device, const std::string& dtype, int local_rank) {
  return choose_compute(device, parse_dtype(dtype), local_rank, "--dtype on the command line");
}

Compute choose_compute(const app::ComputeRequest& request, int gpu) {
  return choose_compute(request.device, request.dtype, gpu);
}

Compute choose_compute(const std::string& device, config::DTypeChoice dtype, int local_rank,
                       const std::string& dtype_setting) {
  kernels::install_cpu_allocator();
  Compute compute;
  if (device != "cpu") {
    const CudaStatus status = load_cuda_library();
    if (status.num_devices > 0) {
      compute.device =
          at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank % status.num_devices));
      // The process's current device: calls without a device (contexts, pinned memory) would use
      // GPU 0 otherwise, on every rank.
      c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(compute.device);
    } else if (device == "cuda") {
      throw DeviceError("CUDA was requested but is not available: " + status.reason,
                        "--device cuda", "use --device cpu, or see `sftrun gpu-info`");
    } else if (status.has_driver || names_gpus()) {
      log::warn("computing on the CPU: {}", status.reason);
    }
  }
  compute.dtype = choose_dtype(dtype, compute.device, dtype_setting);
  return compute;
}

config::DTypeChoice dtype_choice(at::ScalarType dtype) {
  return dtype == at::kFloat      ? config::DTypeChoice::kFp32
         : dtype == at::kBFloat16 ? config::DTypeChoice::kBf16
                                  : config::DTypeChoice::kFp16;
}

std::string dtype_name(at::ScalarType dtype) {
  return dtype == at::kFloat ? "fp32" : dtype == at::kBFloat16 ? "bf16" : "fp16";
}

std::string device_name(at::Device device) {
  return device.is_cpu() ? observe::cpu_model() : kernels::card_name(device);
}

void set_threads(std::optional<int64_t> asked) {
  std::optional<int> wanted = asked;
  const bool by_flag = wanted.has_value();
  const int most = launch::max_threads();
  if (!wanted && std::getenv("OMP_NUM_THREADS") == nullptr) {
    wanted = std::max(1, static_cast<int>(observe::available_cpus()));
  } else if (!wanted && at::get_num_threads() > most) {
    log::warn("OMP_NUM_THREADS={} is above the largest value; used: {}", at::get_num_threads(),
              counted(most, "thread"));
    wanted = most;
  }
  start_threads(wanted, by_flag);
  watch_spinning(at::get_num_threads());
}

namespace {

layers::Recomputed recomputed_part(config::Checkpointing choice) {
  if (choice == config::Checkpointing::kAttention) return layers::Recomputed::kMixer;
  if (choice == config::Checkpointing::kMlp) return layers::Recomputed::kFeedForward;
  return layers::Recomputed::kNothing;
}

kernels::CudaAttention cuda_attention(const config::RunConfig& config) {
  switch (config.model.attention) {
    case config::AttentionChoice::kCudnn:
      return kernels::CudaAttention::kCudnn;
    case config::AttentionChoice::kMeasure:
      return kernels::CudaAttention::kMeasure;
    case config::AttentionChoice::kFlash:
      return kernels::CudaAttention::kFlash;
    case config::AttentionChoice::kAuto:
      break;
  }
  // cuDNN's kernel sums the gradient of queries in no fixed order.
  return config.train.deterministic ? kernels::CudaAttention::kFlash
                                    : kernels::CudaAttention::kAuto;
}

}  // namespace

model::DecoderOptions decoder_options(const config::RunConfig& config, const Compute& compute,
                                      const weights::Checkpoint* checkpoint) {
  model::DecoderOptions options;
  options.dtype = compute.dtype;
  options.device = compute.device;
  options.backend = config.tuning.backend == config::TuningBackend::kFused
                        ? &layers::fused_backend()
                        : &layers::plain_backend();
  options.gradient_checkpointing =
      config.train.gradient_checkpointing == config::Checkpointing::kLayer;
  options.recomputed = recomputed_part(config.train.gradient_checkpointing);
  options.inputs_on_host = config.parallel.offload.activations == config::Offload::kCpu;
  options.attention = cuda_attention(config);
  options.seed = static_cast<uint64_t>(config.train.seed);
  options.neftune_noise_alpha = config.train.neftune_noise_alpha.value_or(0);
  options.parts = config.tuning.train_parts.trained();
  switch (config.tuning.mode) {
    case config::TuningMode::kFull:
      options.trains = model::Trains::kFull;
      break;
    case config::TuningMode::kPartial:
      options.trains = model::Trains::kPartial;
      options.trainable = config.tuning.trainable;
      break;
    default:
      options.trains = model::Trains::kLora;
      options.lora = plan::lora_spec(config.tuning,
                                     checkpoint == nullptr ? spec::ArchSpec{} : checkpoint->arch());
      options.base = model::base_form(config.tuning, checkpoint);
  }
  return options;
}

data::TextModel text_model_of(const weights::Checkpoint& checkpoint,
                              const std::string& configured_template) {
  data::TextModel text = data::make_text_model(checkpoint.tokenizer(), checkpoint.chat_template(),
                                               checkpoint.render_defaults(), configured_template,
                                               checkpoint.arch().eos_token_ids);
  const spec::ArchSpec& arch = checkpoint.arch();
  text.num_embeddings =
      arch.per_layer_size > 0 ? std::min(arch.vocab_size, arch.per_layer_vocab) : arch.vocab_size;
  return text;
}

void add_image_input(data::TextModel& text, const std::filesystem::path& folder,
                     const spec::ArchSpec& arch, const images::ImageCaps& caps) {
  if (!is_folder(folder)) return;
  std::shared_ptr<const data::ImageInput> images =
      data::image_input_of(folder, *text.tokenizer, caps);
  if (images == nullptr || images->refusal || arch.vision)
    return data::set_images(text, std::move(images));
  auto refused = std::make_shared<data::ImageInput>(*images);
  refused->refusal = DataError("images for models of this type are not supported",
                               (folder / "config.json").string(), "use the model with texts alone");
  text.images = std::move(refused);
}

data::TextModel full_text_model(const weights::Checkpoint& checkpoint,
                                const std::filesystem::path& folder,
                                const std::string& configured_template,
                                const images::ImageCaps& caps) {
  data::TextModel text = text_model_of(checkpoint, configured_template);
  add_image_input(text, folder, checkpoint.arch(), caps);
  text.features = data::feature_input_of(checkpoint.arch().projectors, *text.tokenizer);
  return text;
}

bool reads_images(const data::TextModel& text) {
  return text.images != nullptr && !text.images->refusal;
}

void warn_of_unread_images(const std::vector<data::InputRecord>& records,
                           const data::TextModel& text) {
  if (!reads_images(text)) return;
  if (const std::string warning = data::unread_images_warning(records); !warning.empty())
    log::warn("{}", warning);
}

void require_reads_images(const data::TextModel& text, const spec::ArchSpec& arch,
                          const std::filesystem::path& folder, const std::string& where) {
  data::require_image_side(arch.vision.has_value(), folder, where);
  if (text.images->refusal) throw *text.images->refusal;
}

void read_images(model::Decoder& decoder, const data::TextModel& text, int num_threads,
                 Activity* activity) {
  decoder.read_images_from(std::make_shared<train::ImageLoader>(text.images, decoder.tower().spec,
                                                                num_threads, activity));
}

/// An adapter is used with the template that it was trained with; empty: the base's own.
std::string template_of_adapter(const std::optional<std::string>& adapter) {
  if (!adapter) return {};
  return tokenizer::chat_template_in(*adapter).value_or("");
}

namespace {

/// Beside which a run wrote how it read texts and images.
const std::string& trained_folder(const app::ModelRequest& request) {
  return request.adapter ? *request.adapter : request.model;
}

/// Variables of the chat template: those of the run that trained the adapter or model, and over them
/// the command's.
templates::Json variables_for(const app::ModelRequest& request) {
  templates::Json variables = weights::read_template_variables(trained_folder(request));
  if (!variables.empty())
    log::info("chat_template_kwargs of the training run: {}", excerpt(variables.dump()));
  if (request.chat_template_kwargs)
    variables.update(templates::Json::parse(*request.chat_template_kwargs));
  return variables;
}

bool is_same_form(const model::BaseForm& a, const model::BaseForm& b) {
  const auto parts = [](const model::BaseForm& form) {
    const QuantOptions quant = form.quant.value_or(QuantOptions{});
    return std::tuple(form.keep_stored, form.quant.has_value(), quant.format, quant.block_size,
                      quant.nested, form.embeddings, form.skip_modules);
  };
  return parts(a) == parts(b);
}

/// Reports what of the adapter the model does not have at the adapter's files: there is no run
/// whose `tuning.lora` could be changed.
[[noreturn]] void fail_to_fit(const ConfigError& error, const std::string& adapter,
                              const weights::AdapterConfig& config, const spec::ArchSpec& arch) {
  weights::load_adapter(adapter, config, arch);  // names a tensor that does not fit
  constexpr std::string_view kSection = "tuning.lora.";
  if (!error.where().starts_with(kSection)) throw error;
  throw DataError(
      error.message(),
      fmt::format("{}/adapter_config.json: {}", adapter, error.where().substr(kSection.size())),
      "adapter_config.json and adapter_model.safetensors must belong together, and to this model");
}

}  // namespace

std::shared_ptr<model::SharedWeights> SharedBases::of(const model::BaseForm& form) {
  for (const auto& [other, weights] : bases_)
    if (is_same_form(form, other)) return weights;
  bases_.emplace_back(form, std::make_shared<model::SharedWeights>());
  return bases_.back().second;
}

config::DataSource input_of(const app::InputRequest& request) {
  config::DataSource input;
  input.path = request.input.value();
  input.name = request.subset;
  input.split = request.split;
  return input;
}

void warn_of_idle_template_flag(const app::ModelRequest& request,
                                const std::vector<const data::TextModel*>& models, bool renders) {
  if (!request.chat_template_kwargs) return;
  for (const std::string& idle : data::idle_template_flag(
           models, templates::Json::parse(*request.chat_template_kwargs), renders))
    log::warn("{}", idle);
}

namespace {

/// A model whose weights are not loaded yet.
struct OpenedModel {
  LoadedModel loaded;
  model::DecoderOptions options;
  std::optional<std::string> adapter;
  weights::AdapterConfig adapter_config;
  config::TuningConfig tuning;  ///< how the base is quantised as it is loaded
  bool is_own_base = false;     ///< the adapter changes weights of its base
};

/// Holds the base as the adapter's run held it, where that quantised it as it was loaded; else in
/// its stored format.
void hold_as_trained(OpenedModel& opened) {
  const auto held = model::quantised_by_run(*opened.adapter, *opened.loaded.checkpoint);
  if (!held) return;
  log::info("base precision: {}, as in the adapter's training run", held->words());
  opened.tuning = held->tuning;
  opened.options.base = model::base_form(held->tuning, opened.loaded.checkpoint.get());
}

void open_adapter(OpenedModel& opened, bool as_stored) {
  const weights::Checkpoint& base = *opened.loaded.checkpoint;
  model::warn_of_another_base(*opened.adapter, base);
  opened.adapter_config = weights::load_adapter_config(*opened.adapter, base.arch());
  opened.options.trains = model::Trains::kLora;
  opened.options.lora = opened.adapter_config.lora;
  opened.options.parts = opened.adapter_config.lora.parts;
  // What PiSSA leaves of a matrix fits no blocks, and PEFT takes it from the values, too.
  if (opened.adapter_config.lora.pissa)
    opened.options.base.keep_stored = false;
  else if (!as_stored)
    hold_as_trained(opened);
}

/// As the run read texts and images that trained the adapter or model.
data::TextModel text_as_trained(const app::ModelRequest& request,
                                const weights::Checkpoint& model) {
  const images::ImageCaps caps = images::read_caps(trained_folder(request));
  data::TextModel text =
      full_text_model(model, request.model, template_of_adapter(request.adapter), caps);
  text.render_defaults.kwargs = variables_for(request);
  if (caps.any() && request.takes_images && reads_images(text))
    log::info("limits of images in the training run: {}", images::words_of(caps));
  return text;
}

/// As a configuration says. Variables of the template come with the data.
data::TextModel text_of_run(const app::ModelRequest& request, const weights::Checkpoint& model) {
  const config::RunConfig& run = *request.read_as;
  return full_text_model(model, request.model, run.model.chat_template, data::image_caps(run.data));
}

OpenedModel open_model(const app::ModelRequest& request, const Compute& compute) {
  OpenedModel opened;
  LoadedModel& loaded = opened.loaded;
  opened.adapter = request.adapter;
  if (opened.adapter) {
    weights::AdapterBase base = weights::open_adapter_base(request.model, *opened.adapter);
    opened.is_own_base = base.is_resized || !base.replaced.empty();
    loaded.checkpoint = std::move(base.checkpoint);
  } else {
    loaded.checkpoint = weights::Checkpoint::open(request.model);
  }
  loaded.text = request.read_as ? text_of_run(request, *loaded.checkpoint)
                                : text_as_trained(request, *loaded.checkpoint);
  opened.options.with_vision = request.takes_images && reads_images(loaded.text);
  loaded.trained = request.adapter.value_or(request.model);
  loaded.dtype = compute.dtype;
  opened.options.dtype = compute.dtype;
  opened.options.device = compute.device;
  opened.options.base.keep_stored = true;
  if (opened.adapter) open_adapter(opened, request.as_stored);
  return opened;
}

void hold_as(OpenedModel& opened, const config::TuningConfig& form) {
  opened.tuning = form;
  opened.options.base = model::base_form(form, opened.loaded.checkpoint.get());
}

/// @param bases null: the model has weights of its own
void share_weights(OpenedModel& opened, SharedBases* bases) {
  if (bases != nullptr && !opened.is_own_base && !opened.options.lora.pissa)
    opened.options.shared_weights = bases->of(opened.options.base);
}

/// An adapter that does not fit the model is named before what the model excludes.
void divide_matrices(ModelDivision& division, const OpenedModel& opened,
                     const config::RunConfig& config) {
  const weights::Checkpoint& base = *opened.loaded.checkpoint;
  try {
    division.divide_matrices(base, config);
  } catch (const ConfigError&) {
    if (opened.adapter) weights::load_adapter(*opened.adapter, opened.adapter_config, base.arch());
    throw;
  }
}

void load_weights(OpenedModel& opened) {
  LoadedModel& loaded = opened.loaded;
  try {
    loaded.decoder = load_decoder(loaded.checkpoint, opened.options);
    if (opened.options.with_vision)
      read_images(*loaded.decoder, loaded.text, at::get_num_threads());
  } catch (const ConfigError& error) {
    if (opened.adapter)
      fail_to_fit(error, *opened.adapter, opened.adapter_config, loaded.checkpoint->arch());
    throw;
  }
}

void tell_of(const Compute& compute) {
  log::info("computing in {} on {}", dtype_name(compute.dtype),
            compute.device.is_cpu() ? "the CPU" : device_name(compute.device));
}

}  // namespace

void refuse_embedder(const LoadedModel& model) {
  weights::refuse_embedding_model(
      model.trained,
      {.where = "--model or --adapter",
       .fix = "use sftrun score, which writes embeddings, or sentence-transformers"});
}

void require_language_head(const LoadedModel& model) {
  refuse_embedder(model);
  if (!model.checkpoint->arch().score) return;
  throw ConfigError("the model has a head of scores, and gives no tokens", "--model or --adapter",
                    "use sftrun score, which writes its scores or classes, or sftrun serve");
}

LoadedModel load_model(const app::ModelRequest& request, const app::ComputeRequest& asked,
                       int local_rank, SharedBases* bases, bool is_first) {
  set_threads(asked.threads);
  const Compute compute = choose_compute(asked, local_rank);
  OpenedModel opened = open_model(request, compute);
  share_weights(opened, bases);
  load_weights(opened);
  LoadedModel loaded = std::move(opened.loaded);
  if (opened.adapter) {
    model::load_adapter_weights(*loaded.decoder, *opened.adapter);
    loaded.decoder->freeze_adapters();
  }
  if (is_first) tell_of(compute);
  return loaded;
}

int load_part(const app::ModelRequest& request, const app::ComputeRequest& asked,
              const config::ParallelConfig& parallel, Rank& rank, LoadedModel& loaded,
              SharedBases* bases, bool is_first, const config::TuningConfig* form) {
  const Compute compute = choose_compute(asked, rank.gpu());
  config::RunConfig config;
  config.parallel = parallel;
  OpenedModel opened = open_model(request, compute);
  if (form != nullptr) hold_as(opened, *form);
  config.tuning = opened.tuning;
  auto division = std::make_unique<ModelDivision>(rank.comm(), config, compute.device);
  divide_matrices(*division, opened, config);
  if (division->shards() == nullptr) share_weights(opened, bases);
  division->apply_to(opened.options, opened.loaded.checkpoint->arch(), config);
  const int stop =
      load_together(rank, *division, compute.device, [&](const std::function<void()>& stop_point) {
        opened.options.stop_point = stop_point;
        load_weights(opened);
      });
  if (stop != 0) return stop;
  loaded = std::move(opened.loaded);
  loaded.division = std::move(division);
  loaded.strategy = loaded.division->make_strategy(config, *loaded.decoder);
  if (opened.adapter) {
    model::load_adapter_weights(*loaded.decoder, *opened.adapter,
                                [&](const layers::Parameter& parameter, const at::Tensor& values) {
                                  loaded.strategy->assign(parameter, values);
                                });
    // Row norms are computed from whole matrices.
    if (!parallel.axes.shards_weights()) loaded.decoder->freeze_adapters();
  }
  loaded.copy = std::make_unique<parallel::MeshCopy>(
      loaded.division->groups(), *loaded.strategy, compute.device, parallel.axes.shards_weights());
  if (rank.is_main() && is_first) tell_of(compute);
  return 0;
}

}  // namespace sftrun::engine
