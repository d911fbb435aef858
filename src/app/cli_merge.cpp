#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli.h"
#include "model_source.h"
#include "run_check.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/quant_format.h"
#include "sftrun/core/strings.h"
#include "sftrun/images/caps_file.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/spec/feature_projectors.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/embedding_files.h"
#include "sftrun/weights/gguf_export.h"
#include "sftrun/weights/gguf_lora.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/ollama_modelfile.h"
#include "sftrun/weights/projectors.h"
#include "sftrun/weights/score_head.h"
#include "sftrun/weights/vllm_adapter.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::app {
namespace {

struct MergeOptions {
  std::string model, adapter, checkpoint, dtype = "auto", max_shard_size = "5GB", format, data,
                                          device = "auto";
  std::optional<int64_t> sample;
  bool as_stored = false;
  QuantRequest quant;
  OutputFlags output;
};

/// The dtypes that --format accepts, "auto" first.
std::vector<std::string> dtypes_of(const std::string& format) {
  if (format == "gguf") {
    std::vector<std::string> mixes = weights::gguf_mixes();
    mixes.insert(mixes.begin(), "auto");
    return mixes;
  }
  std::vector<std::string> dtypes = {"auto", "bf16", "f16", "f32"};
  if (format == "safetensors") {
    for (const std::string& name : written_quant_names()) dtypes.push_back(name);
  }
  return dtypes;
}

std::vector<std::string> all_dtypes() {
  std::vector<std::string> dtypes = dtypes_of("safetensors");
  for (const std::string& mix : dtypes_of("gguf")) {
    if (std::find(dtypes.begin(), dtypes.end(), mix) == dtypes.end()) dtypes.push_back(mix);
  }
  return dtypes;
}

CLI::Validator merged_dtype() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        text = stored_dtype_word(ascii_lower(text));
        return {};  // check_dtype knows the format
      },
      join(all_dtypes(), "|"));
}

/// An --output that ends in .gguf is a file.
void resolve_format(MergeOptions& options) {
  if (options.format.empty()) options.format = options.output.is_file() ? "gguf" : "safetensors";
  if (!options.output.is_file() || options.format.ends_with("gguf")) return;
  throw ConfigError(fmt::format("--output names a .gguf file, but --format is {}", options.format),
                    "--output on the command line",
                    fmt::format("name a directory, or remove --format {}", options.format));
}

void check_unused(const MergeOptions& options, const CLI::App& command) {
  const auto refuse = [&](const char* flag, const std::string& subject) {
    if (command.count(flag) == 0) return;
    throw ConfigError(
        fmt::format("{} is only for {}, but --format is {}", flag, subject, options.format),
        fmt::format("{} on the command line", flag), "remove it");
  };
  const auto refuse_of_model = [&](const char* flag) {
    if (command.count(flag) == 0) return;
    throw ConfigError(fmt::format("{} is only for adapters, and there is no --adapter", flag),
                      fmt::format("{} on the command line", flag),
                      "remove it, or name the adapter with --adapter");
  };
  if (options.format == "vllm") refuse("--dtype", "merged models and adapters for llama.cpp");
  if (options.format != "safetensors") refuse("--max-shard-size", "safetensors models");
  if (options.format != "safetensors" && options.format != "gguf") {
    for (const char* flag : {"--sample", "--data", "--device", "--as-stored"})
      refuse(flag, "merged models");
  }
  if (!options.adapter.empty()) return;
  for (const char* flag : {"--sample", "--data", "--device", "--as-stored"}) refuse_of_model(flag);
}

bool is_among(const std::string& dtype, const std::vector<std::string>& dtypes) {
  return std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
}

/// How to write models of a dtype that --format does not accept.
std::string format_for(const MergeOptions& options, const std::string& dtype) {
  return is_among(dtype, dtypes_of("gguf")) ? "write --format gguf"
         : options.output.is_file()         ? "name a directory as --output"
                                            : "write --format safetensors";
}

void check_dtype(const MergeOptions& options) {
  const std::vector<std::string> known = dtypes_of(options.format), all = all_dtypes();
  if (is_among(options.dtype, known)) return;
  constexpr const char* kWhere = "--dtype on the command line";
  if (is_among(options.dtype, all)) {
    throw ConfigError(
        fmt::format("--dtype {} is only for {} models, but --format is {}", options.dtype,
                    is_among(options.dtype, dtypes_of("gguf")) ? "GGUF" : "safetensors",
                    options.format),
        kWhere,
        fmt::format("{}, or one of {}", format_for(options, options.dtype), join(known, ", ")));
  }
  const std::string elsewhere =
      nearest(options.dtype, known).empty() ? nearest(options.dtype, all) : "";
  if (elsewhere.empty()) require_one_of("--dtype", options.dtype, known);
  throw ConfigError(
      fmt::format("`{}` is not one of {}", excerpt(options.dtype), join(known, ", ")), kWhere,
      fmt::format("did you mean `{}`? For that {}", elsewhere, format_for(options, elsewhere)));
}

/// The newest folder step-… of a run directory or of its checkpoints/; "" if there is none.
std::string newest_checkpoint_in(const std::filesystem::path& directory) {
  std::string newest;
  for (const auto& folder : {directory, directory / "checkpoints"}) {
    for (const std::filesystem::path& entry : readable_entries_of(folder))
      if (entry.filename().string().starts_with("step-")) newest = std::max(newest, entry.string());
  }
  return newest;
}

void require_checkpoint(const std::string& checkpoint) {
  if (checkpoint.empty()) return;
  constexpr const char* kWhere = "--checkpoint on the command line";
  require_exists("--checkpoint", checkpoint);
  if (has_optional_file(std::filesystem::path(checkpoint) / "state.json")) return;
  require_saved_run({.name = checkpoint, .where = kWhere});
  const std::string newest = newest_checkpoint_in(checkpoint);
  throw DataError(fmt::format("{} is not a checkpoint", checkpoint), kWhere,
                  newest.empty() ? "name a folder like runs/NAME/checkpoints/step-000100"
                                 : fmt::format("it has checkpoints; the newest is {}", newest));
}

void check(const MergeOptions& options, const CLI::App& command) {
  const bool writes_adapter = options.format == "vllm" || options.format == "lora-gguf";
  require_at_most_one(command, {"--adapter", "--checkpoint"});
  const bool has_model = !options.model.empty() || !options.checkpoint.empty();
  require(!options.adapter.empty() || (!writes_adapter && has_model), command,
          writes_adapter ? "--adapter" : "--adapter, --checkpoint or --model");
  require(!options.output.path.empty(), command, "--output");
  require_checkpoint(options.checkpoint);
  check_unused(options, command);
  check_dtype(options);
  check_quant_flags(command, "--dtype", options.dtype);
  if (!options.data.empty()) require_exists("--data", options.data);
  check_output(options.output);
}

/// The model that a checkpoint's run began with, as its run.json says.
std::string base_of_checkpoint(const std::string& checkpoint) {
  const std::filesystem::path run = observe::run_directory_of(checkpoint);
  if (run.empty()) {
    throw DataError(fmt::format("{} is not in a run directory", checkpoint),
                    "--checkpoint on the command line",
                    "name a folder checkpoints/step-… of a run, or name the model that the run "
                    "began with: --model MODEL");
  }
  return observe::read_run_report(run / "run.json").base_model_path;
}

/// The path of the model. The output may not replace it.
std::filesystem::path model_of(const MergeOptions& options, const CLI::App& command,
                               hub::ModelParts parts = hub::ModelParts::kAll) {
  const bool is_of_run = options.model.empty() && !options.checkpoint.empty();
  const std::filesystem::path model =
      checked_model(command, is_of_run ? base_of_checkpoint(options.checkpoint) : options.model,
                    options.adapter, parts);
  require_apart(options.output, model);
  return model;
}

int merge(const MergeOptions& options, const CLI::App& command) {
  return run_in_engine(
      MergeRequest{.model = model_of(options, command).string(),
                   .output = options.output.path.string(),
                   .adapter = if_given(options.adapter),
                   .checkpoint = if_given(options.checkpoint),
                   .format = options.format,
                   .dtype = options.dtype,
                   .max_shard_size = parse_size(options.max_shard_size, "--max-shard-size"),
                   .as_stored = options.as_stored,
                   .overwrite = options.output.overwrite,
                   .json = options.output.json,
                   .quant = options.quant,
                   .sample = options.sample,
                   .data = if_given(options.data),
                   .device = options.device});
}

/// Writes into a directory that appears only when it is complete.
void write_output(const MergeOptions& options,
                  const std::function<void(const std::filesystem::path&)>& write) {
  write_new_directory(options.output.path, "the adapter", write,
                      existing_with(options.output.overwrite));
}

void write_output_file(const MergeOptions& options,
                       const std::function<void(const std::filesystem::path&)>& write) {
  write_new_file(options.output.path, "the adapter", write,
                 existing_with(options.output.overwrite));
}

/// Reports the written adapter, as a log line or as JSON.
int say_written(const MergeOptions& options, weights::TemplateReader reader,
                const std::filesystem::path& path, const std::string& dtype) {
  const std::string unread =
      weights::variables_warning(weights::read_template_variables(options.adapter), reader);
  if (!unread.empty()) log::warn("{}", unread);
  const images::ImageCaps caps = images::read_caps(options.adapter);
  if (caps.any() && reader == weights::TemplateReader::kVllm)
    log::warn(
        "trained with limits of images ({}), which vLLM reads from the base's files, not from an "
        "adapter's: serve the merged model",
        images::words_of(caps));
  log::info("wrote the adapter {} in the format of {}: {}", options.adapter,
            reader == weights::TemplateReader::kVllm ? "vLLM" : "llama.cpp", path.string());
  if (options.output.json) {
    fmt::print("{}\n", weights::describe_written(path, options.format, dtype, nullptr).dump());
  }
  return static_cast<int>(ExitCode::kDone);
}

/// Of the base, with the adapter's projectors.
spec::ArchSpec arch_of_adapter(const std::filesystem::path& model, const MergeOptions& options) {
  spec::ArchSpec arch = read_arch(model);
  spec::add_projectors(arch, weights::read_projectors(options.adapter));
  return arch;
}

/// Adapters for servers change models that write texts.
/// @param reader of the adapter   @param then what reads the whole model: "vllm serve {}"
void require_adapter_of_language_model(const MergeOptions& options, const char* reader,
                                       const char* then) {
  const bool embeds = weights::is_embedding_model(options.adapter);
  if (!embeds && !weights::read_score(options.adapter)) return;
  const std::string merged = shell_word(options.adapter + "-merged");
  throw ConfigError(
      fmt::format("{} reads no adapters of models that {}", reader,
                  embeds ? "embed texts (this one has a modules.json)" : "have a head of scores"),
      options.adapter,
      fmt::format("write the whole model: sftrun merge --adapter {} --output {}; then {}",
                  shell_word(options.adapter), merged, fmt::format(fmt::runtime(then), merged)));
}

/// Only the model's configuration is read.
int write_for_vllm(const MergeOptions& options, const CLI::App& command) {
  require_adapter_of_language_model(options, "vLLM", "vllm serve {}");
  const std::filesystem::path model = model_of(options, command, hub::ModelParts::kText);
  write_output(options, [&](const std::filesystem::path& directory) {
    weights::write_vllm_adapter(options.adapter, directory, arch_of_adapter(model, options));
    images::write_caps(directory, images::read_caps(options.adapter));  // other files have them
  });
  return say_written(options, weights::TemplateReader::kVllm, options.output.path, "f32");
}

/// For Ollama, if the base is a GGUF file: only then is it certain that the order of the adapter's
/// rows fits the model that Ollama loads.
void write_modelfile(const std::filesystem::path& model, const MergeOptions& options,
                     const std::filesystem::path& adapter) {
  const auto base = weights::Checkpoint::open(model);
  const std::optional<std::string> own = tokenizer::chat_template_in(options.adapter);
  weights::OllamaModelfile modelfile = weights::ollama_modelfile(
      *base, own ? own : base->chat_template(), weights::added_bos_of(weights::GgufFile(model)),
      weights::read_template_variables(options.adapter));
  modelfile.from = absolute_path(model).string();
  modelfile.adapter = "./" + adapter.filename().string();
  modelfile.write_to(adapter.parent_path());
}

/// Only the model's configuration is read, and, from a GGUF file, what its Modelfile needs. If
/// --output names a file, only that file is written.
int write_for_llama_cpp(const MergeOptions& options, const CLI::App& command) {
  namespace fs = std::filesystem;
  require_adapter_of_language_model(options, "llama.cpp", "transformers and vLLM read {}");
  const fs::path model = model_of(options, command, hub::ModelParts::kText);
  const std::string dtype = options.dtype == "auto" ? "f32" : options.dtype;
  const auto write = [&](const fs::path& file) {
    weights::write_gguf_lora(options.adapter, model, arch_of_adapter(model, options), dtype, file);
  };
  fs::path written = options.output.path;
  if (options.output.is_file()) {
    write_output_file(options, write);
  } else {
    const std::string name =
        absolute_path(written / fs::path()).lexically_normal().parent_path().filename().string() +
        "-lora.gguf";
    write_output(options, [&](const fs::path& directory) {
      write(directory / name);
      if (!is_folder(model)) write_modelfile(model, options, directory / name);
    });
    written /= name;
  }
  return say_written(options, weights::TemplateReader::kLlamaCpp, written, dtype);
}

int run(const MergeOptions& options, const CLI::App& command) {
  if (options.format == "vllm") return write_for_vllm(options, command);
  if (options.format == "lora-gguf") return write_for_llama_cpp(options, command);
  return merge(options, command);
}

}  // namespace

Command add_merge(CLI::App& sftrun) {
  auto options = std::make_shared<MergeOptions>();
  CLI::App* command = add_command(
      sftrun, "merge",
      "Merge an adapter into its base model, convert a model or a checkpoint, or write "
      "an adapter for vLLM or llama.cpp",
      "sftrun merge --adapter runs/first/adapter --output models/mine --dtype bf16\n"
      "  sftrun merge --model runs/full --output mine.gguf --dtype q4_k_m\n"
      "  sftrun merge --checkpoint runs/full/checkpoints/step-000100 --output models/at-100");
  command->add_option(
      "-m,--model", options->model,
      "The adapter's base model [the one that the adapter names]; without --adapter the "
      "model to convert: directory in Hugging Face layout, run directory of full training, .gguf "
      "file, or a name on the hub");
  command
      ->add_option("--adapter", options->adapter,
                   "PEFT adapter: directory, or a name on the hub; without it the model is "
                   "only converted")
      ->type_name("ADAPTER");
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "Checkpoint of full or partial training, from any number of ranks: write the "
                   "model with its weights")
      ->type_name("DIR");
  add_output_flags(*command, options->output, "New directory, or the .gguf file to write");
  command
      ->add_option(
          "--dtype", options->dtype,
          fmt::format(
              "Type of the stored weights. q8_0 to q4_0: GGUF only. {}: as in sftrun quantize, "
              "safetensors only. auto: the base's type, bf16 if the base is quantised",
              join(written_quant_names(), ", ")))
      ->transform(merged_dtype())
      ->capture_default_str();
  add_quant_flags(*command, options->quant, "the base's if it is in 4 bits, else 64");
  command
      ->add_option("--max-shard-size", options->max_shard_size,
                   "Maximum file size; larger models are split into several files")
      ->capture_default_str();
  command
      ->add_option(
          "--format", options->format,
          "safetensors or gguf: the merged model; vllm or lora-gguf: only the adapter, for "
          "vLLM or llama.cpp [safetensors; gguf if --output ends in .gguf]")
      ->check(one_of({"safetensors", "gguf", "vllm", "lora-gguf"}));
  command->add_flag(
      "--as-stored", options->as_stored,
      "If the adapter's run quantised the base: merge into the base's original values [into the "
      "dequantised values that the adapter was trained on, unless --dtype has as few bits]");
  command
      ->add_option("--sample", options->sample,
                   "Number of sequences of the run's data on which to measure what merging "
                   "changes; 0: do not measure [32 if the base was quantised]")
      ->check(at_least(0));
  command->add_option("--data", options->data, "Records for --sample [those of the run]")
      ->type_name("FILE");
  command->add_option("--device", options->device, "Device to measure on")
      ->check(device_name())
      ->capture_default_str();
  return {command,
          [options, command] {
            resolve_format(*options);
            check(*options, *command);
            find_adapter(options->adapter);
            require_apart(options->output, options->adapter);
            require_apart(options->output, options->checkpoint);
            return run(*options, *command);
          },
          /*other_words=*/{"export", "convert", "merge-lora"},
          /*idle_rules=*/{{{"--data", "--device"}, idle::with_value("--sample", "0")}}};
}

}  // namespace sftrun::app
