#include "sftrun/export/merge.h"

#include "merge_writers.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/images/caps_file.h"
#include "sftrun/model/base_form.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/projectors.h"
#include "sftrun/weights/score_head.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::exporting {
namespace fs = std::filesystem;
namespace {

/// What is written from.
struct Sources {
  weights::AdapterBase base;
  weights::AdapterTensors adapter;  ///< empty: the model alone
  bool pissa = false;
  QuantisedByRun quantised;
  std::optional<train::TrainedValues> trained;
  std::string held_in;  ///< what most of the base's matrices were in: "nf4", "Q4_1"; empty: dense
};

/// Whether values that were dequantised from one format are rounded to the same codes again, or
/// nearly so.
bool gives_same_codes(QuantFormat base_format, const std::string& dtype) {
  const QuantFormatInfo* format = find_quant_format(dtype);
  return format != nullptr && format->layout == quant_info(base_format).layout;
}

Sources open_adapter(const MergeOptions& options) {
  const fs::path& adapter = *options.adapter;
  Sources sources{.base = weights::open_adapter_base(options.base, adapter)};
  const weights::Checkpoint& base = *sources.base.checkpoint;
  model::warn_of_another_base(adapter, base);
  const auto config = weights::load_adapter_config(adapter, base.arch());
  sources.adapter = weights::load_adapter(adapter, config, base.arch());
  sources.pissa = config.lora.pissa;
  sources.held_in = weights::packed_format(base);
  if (options.as_stored) return sources;
  const auto held = model::quantised_by_run(adapter, base);
  if (!held) return sources;
  sources.held_in = held->form;
  if (gives_same_codes(held->tuning.quant_options()->format, options.dtype)) {
    log::info(
        "merging into the base's original values: the dequantised ones that the adapter was "
        "trained on would be rounded to the same codes again, and most of the update would be "
        "lost");
    return sources;
  }
  sources.quantised = matrices_quantised(held->tuning, base);
  log::info(
      "merging into the values that the adapter was trained on: the base, dequantised from {} "
      "(--as-stored: into its original values)",
      held->words());
  return sources;
}

Sources open_sources(const MergeOptions& options) {
  if (options.adapter) {
    Sources sources = open_adapter(options);
    log::info("merging {} of {} with {}", counted(sources.adapter.lora.size(), "module"),
              options.adapter->string(), options.base.string());
    return sources;
  }
  if (options.checkpoint) {
    Sources sources{.base = {.checkpoint = weights::with_projectors(
                                 weights::Checkpoint::open(options.base),
                                 weights::read_projectors(*options.checkpoint))}};
    if (auto score = weights::read_score(*options.checkpoint))
      sources.base.checkpoint =
          weights::with_score(std::move(sources.base.checkpoint), std::move(*score));
    if (weights::read_embedding_files(*options.checkpoint))
      sources.base.checkpoint = weights::without_head(std::move(sources.base.checkpoint));
    sources.trained.emplace(*options.checkpoint, *sources.base.checkpoint);
    log::info("putting the weights of {} into {}", options.checkpoint->string(),
              options.base.string());
    return sources;
  }
  if (options.format == "gguf" && options.dtype == "auto" && !is_folder(options.base)) {
    throw ConfigError("the model is a GGUF file already, and there is no adapter to merge",
                      options.base.string(),
                      "name a type with --dtype, or a directory to write safetensors into");
  }
  log::info("converting {}", options.base.string());
  return {.base = {.checkpoint = weights::Checkpoint::open(options.base)}};
}

void log_replaced_weights(const weights::AdapterBase& base) {
  for (const std::string& tensor : base.replaced) {
    log::info("{}: replaced by the adapter's ({})", tensor,
              base.is_resized ? fmt::format("resized to {}", base.checkpoint->arch().vocab_size)
                              : std::string("same number of rows"));
  }
  if (base.text_directory) log::info("using the adapter's tokenizer");
}

void log_written(const MergeOptions& options, const Sources& sources, const WrittenModel& written) {
  log::info("wrote {} ({}, {})", written.path.string(), written.stored,
            format_bytes(weights::summarize_weights(written.path).bytes));
  if (written.images) {
    log::info("wrote {} (the image side: llama.cpp's --mmproj; {})", written.images->string(),
              format_bytes(weights::summarize_weights(*written.images).bytes));
  }
  if (!sources.held_in.empty() && written.in_more_than_base) {
    log::info(
        "the base was in {}; the merged model is {}; --dtype {} stores fewer bits and changes more",
        sources.held_in, written.stored,
        options.format == "gguf" ? "q4_k_m or q4_0" : join(written_quant_names(), ", "));
  }
  log_replaced_weights(sources.base);
  if (!sources.adapter.saved.empty()) {
    log::info("from the adapter (modules_to_save): {}",
              counted(sources.adapter.saved.size(), "tensor"));
  }
}

}  // namespace

std::optional<std::string> chat_template_of(const MergeOptions& options) {
  const auto& trained = options.adapter ? options.adapter : options.checkpoint;
  return trained ? tokenizer::chat_template_in(*trained) : std::nullopt;
}

nlohmann::ordered_json template_variables_of(const MergeOptions& options) {
  const auto& trained = options.adapter ? options.adapter : options.checkpoint;
  return weights::read_template_variables(trained.value_or(options.base));
}

images::ImageCaps image_caps_of(const MergeOptions& options) {
  const auto& trained = options.adapter ? options.adapter : options.checkpoint;
  return images::read_caps(trained.value_or(options.base));
}

std::optional<weights::EmbeddingSettings> embedding_of(const MergeOptions& options) {
  const auto& trained = options.adapter ? options.adapter : options.checkpoint;
  return weights::read_embedding_files(trained.value_or(options.base));
}

void write_merged_directory(const MergeOptions& options,
                            const std::function<void(const fs::path&)>& write) {
  write_new_directory(options.output, "the merged model", write, existing_with(options.overwrite));
}

/// The image side of a model that is written for llama.cpp.   @throws DataError where it is not written and the adapter changes it
std::optional<ImageSide> image_side_of(const MergeOptions& options, const Sources& sources) {
  const weights::Checkpoint& base = *sources.base.checkpoint;
  if (options.format != "gguf" || !base.arch().vision) return std::nullopt;
  ImageSide images = plan_image_side(options, base);
  if (images.plan.refused.empty()) return images;
  log::warn("no file of the image side, so the model will read texts alone: {}",
            images.plan.refused);
  if (options.adapter)
    weights::require_text_adapter(sources.adapter, base.arch(), *options.adapter);
  return std::nullopt;
}

/// GGUF files of decoders have no such head, and no pooling.
void require_language_head(const MergeOptions& options, const Sources& sources) {
  if (options.format != "gguf") return;
  const auto& trained = options.adapter ? options.adapter : options.checkpoint;
  weights::refuse_embedding_model(
      trained.value_or(options.base),
      {.why = "the GGUF files that sftrun writes have no pooling",
       .where = options.output.string(),
       .fix = "write a directory: sentence-transformers and vLLM read it, and llama.cpp's "
              "convert_hf_to_gguf.py converts it"});
  if (!sources.base.checkpoint->arch().score) return;
  throw ConfigError("the model has a head of scores, and a GGUF file has a language-model head",
                    options.output.string(),
                    "write a directory: transformers and vLLM read its head");
}

MergedModel merge(const MergeOptions& options) {
  const Sources sources = open_sources(options);
  require_language_head(options, sources);
  const std::optional<ImageSide> images = image_side_of(options, sources);
  MergedWeights merged(sources.base, sources.adapter, sources.pissa, sources.quantised,
                       sources.trained ? &*sources.trained : nullptr);
  WrittenModel written =
      options.format == "gguf"
          ? write_gguf_model(options, sources.base, merged, images ? &*images : nullptr)
          : write_safetensors_model(options, sources.base, merged);
  log_written(options, sources, written);
  return {.base = sources.base.checkpoint, .written = std::move(written)};
}

}  // namespace sftrun::exporting
