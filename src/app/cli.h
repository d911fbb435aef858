#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli_idle_flags.h"
#include "commands.h"
#include "model_source.h"
#include "sftrun/config/run_config.h"
#include "sftrun/hub/hub.h"

/// Helpers that the subcommands' parsers share. Each `add_<command>` registers one subcommand with
/// its flags.
namespace sftrun::app {

/// A registered subcommand.
struct Command {
  CLI::App* parser;
  std::function<int()> run;  ///< after its flags are parsed
  /// What other tools call it, and words that people type for it.
  std::vector<std::string> other_words;
  std::vector<IdleRule> idle_rules;
  bool works_anywhere = false;        ///< it reads and writes nothing by a relative path
  std::vector<Command> actions = {};  ///< subcommands of its own
};
#define SFTRUN_ROW(name) Command add_##name(CLI::App& sftrun);
SFTRUN_SUBCOMMANDS(SFTRUN_ROW)
#undef SFTRUN_ROW

/// Where flags and words stand, for errors.
inline constexpr std::string_view kCommandLine = "the command line";
/// "sftrun config show"
std::string full_name(const CLI::App& command);
/// Whether the word is the name of a YAML file.
bool names_yaml(const std::string& word);

/// Help as `--steps N   Steps to measure [5]`.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
};

/// Adds a subcommand. Unknown flags are left for `check_extras`.
CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& description,
                      const std::string& example);

/// Accepts one of `words`. The error for another word lists them and suggests the nearest.
CLI::Validator one_of(std::vector<std::string> words);
/// The same for a flag whose words depend on other flags: after all are parsed.
/// @throws ConfigError
void require_one_of(const std::string& flag, const std::string& text,
                    const std::vector<std::string>& words);
/// The same for dtypes. Other names of a dtype are accepted and rewritten.
CLI::Validator compute_dtype();  ///< auto, fp32, bf16, fp16
CLI::Validator stored_dtype();   ///< auto, bf16, f16, f32
/// "f32", "f16" or "bf16" for any name of these types; other texts are returned unchanged.
std::string stored_dtype_word(std::string text);
CLI::Validator device_name();  ///< auto, cuda, cpu
/// Why a number with a prefix of another base than ten is refused: CLI11 reads 010 as 8. Every validator of a number asks it first.
/// @return empty: it has none
std::string other_base_error(const std::string& text);
/// A whole number. The largest one leaves room for products with others in 64 bits.
constexpr int64_t kLargestCount = 1'000'000'000;
CLI::Validator at_least(int64_t min, int64_t max = kLargestCount);
constexpr int64_t kMaxMachines = 65'536, kMaxRows = 65'536, kMaxPort = 65'535;
CLI::Validator thread_count();  ///< of --threads: up to launch::max_threads
CLI::Validator in_range(double min, double max);

/// --model and --adapter. Without --model the adapter's base is used.
void add_model_flags(CLI::App& command, std::string& model, std::string& adapter);
/// A model and adapters of it, each with a name.
struct NamedAdapters {
  std::string model;
  std::vector<std::string> adapters;  ///< "NAME=ADAPTER" or "ADAPTER"
};
/// --model and --adapter, which may be given several times.
void add_named_adapters(CLI::App& command, NamedAdapters& flags);
/// The adapters in their order, then the base model.
/// @param served_name of the base model; empty: as it is given
/// @throws ConfigError for two of the same name, and as find_model
NamedModelsRequest named_models(const CLI::App& command, const NamedAdapters& flags,
                                const std::string& served_name = {});

/// `--device`, `--dtype` and `--threads`
void add_compute_flags(CLI::App& command, ComputeRequest& flags);
/// `--images` and `--image-size`   @param verb what the command does with them: "Plan for"
void add_image_flags(CLI::App& command, ImageFlags& flags, const std::string& verb);
/// @throws ConfigError for a size without `--images`
void require_images_of_size(const CLI::App& command);
/// Applies the machine file where no flag is given, unless another launcher has started this process.
void apply_machine_file(LaunchFlags& flags, const CLI::App& command);
/// `--as-stored`
void add_as_stored_flag(CLI::App& command, bool& as_stored);
/// --chat-template-kwargs, the text of a JSON object; other texts are refused when they are parsed.
void add_template_flag(CLI::App& command, std::string& variables);

/// How text is generated.
struct SamplingFlags : SamplingRequest {
  std::string num_beams = "1";  ///< users of transformers type it
};
void add_sampling_flags(CLI::App& command, SamplingFlags& flags);
/// @throws ConfigError for an empty --stop and several beams
void check_sampling_flags(const SamplingFlags& flags);
/// `--batch-size`
void add_batch_size_flag(CLI::App& command, std::optional<int64_t>& batch_size);

/// A whole number, else `fallback`; that also for one of another base than ten.
int64_t to_number(const std::string& text, int64_t fallback);

/// `--nproc-per-node`, `--gpus`, `--nnodes`, `--node-rank`, `--master-addr` and `--master-port`
void add_launch_flags(CLI::App& command, LaunchFlags& flags);
/// How a command divides a model that is too large for one device.
struct DivisionFlags {
  std::string strategy = "auto";  ///< auto, tensor, pipeline, fsdp, device_map
  std::optional<int64_t> tp, pp;
  std::string device_map;  ///< auto, balanced; empty: not given. app::choose_division reads it
  bool is_given() const { return strategy != "auto" || tp || pp; }
};
/// Adds `parallel` to a request: null where each process has the whole model.
/// @throws ConfigError for flags that contradict each other
void put_division(const DivisionFlags& flags, const LaunchFlags& launch, RanksRequest& request);
/// The flags of a command that runs on several ranks: `add_launch_flags`, `--strategy`, `--tp`,
/// `--pp`, `--device-map`, and `--worker-request`, which is hidden: the launcher's request to its workers.
void add_ranks_flags(CLI::App& command, LaunchFlags& launch, DivisionFlags& division,
                     std::filesystem::path& worker_request);
/// @throws ConfigError for a rank of a node that does not exist
void check_launch_flags(const LaunchFlags& flags);

/// `[section.key=value ...]`. Only their form is checked.
void add_overrides(CLI::App& command, std::vector<std::string>& overrides);

/// @throws ConfigError "`sftrun train` requires --config", with an example.
void require(bool given, const CLI::App& command, const std::string& flag);
/// Checks that --config names an existing file. @param words among which a YAML file without
/// --config is found, or a run that has one: the arguments, and an adapter
void require_config(const CLI::App& command, const std::filesystem::path& config,
                    const std::vector<std::string>& words);
/// @throws ConfigError naming the flags if more than one is given.
void require_at_most_one(const CLI::App& command, const std::vector<std::string>& flags);
/// @throws DataError naming `flag` if there is no such file or directory.
void require_exists(const std::string& flag, const std::filesystem::path& path);
/// @throws ConfigError naming `flag` if the directory of `path` does not exist, or if `path` is a
/// directory.
void require_writable_file(const std::string& flag, const std::filesystem::path& path);

/// The same for an HTML page: an existing page may be replaced, but not a data file that was named by
/// mistake.
void require_page(const std::string& flag, const std::filesystem::path& path);

/// --input and --output of the commands that process records. Both may be `-`.
struct RecordFlags {
  std::string input, output;
  std::string subset, split;  ///< of the input, where that is a folder or a data set on the hub
  bool overwrite = false;
  bool replaces_jsonl = false;  ///< an output that ends in .jsonl is replaced without --overwrite
};
/// @param holds describes the records of the input   @param written describes the output
void add_record_flags(CLI::App& command, RecordFlags& flags, const std::string& holds,
                      const std::string& written);
/// Replaces an input on the hub by its files here.
/// @throws DataError if the input does not exist; ConfigError if the output cannot be created, is
/// of the input, or exists and may not be overwritten
void check_record_flags(RecordFlags& flags);
InputRequest input_request(const RecordFlags& flags);
config::DataSource input_of(const RecordFlags& flags);
/// Whether input or output is a stream, which is for one process.
bool is_stream(const RecordFlags& flags);

/// The base model that an adapter's `adapter_config.json` names.
/// @throws DataError if it names none, or is damaged
ModelAsked base_of(const std::filesystem::path& adapter);

/// The path of the model to load: `model`, or the base of `adapter` if only that is given.
/// @throws ConfigError, and as find_model
std::string checked_model(const CLI::App& command, const std::string& model,
                          const std::string& adapter,
                          hub::ModelParts parts = hub::ModelParts::kAll);

/// The name of that model: `model`, or what the adapter calls its base.
std::string model_name(const std::string& model, const std::string& adapter);

/// Replaces what --adapter names by the adapter's directory, with app::find_adapter.
void find_adapter(std::string& adapter);

/// @param block_size describes the default
void add_quant_flags(CLI::App& command, QuantRequest& flags, const std::string& block_size);
/// @param flag the flag that selects `method` ("nf4", "int8", "bf16")
/// @throws ConfigError for flags that do not apply to the method
void check_quant_flags(const CLI::App& command, const std::string& flag, const std::string& method);

/// "5GB", "500MB", "2GiB" or plain bytes: decimal and binary units, like Hugging Face's
/// `max_shard_size`. @throws ConfigError naming `flag`
int64_t parse_size(const std::string& text, const std::string& flag);
/// `--output`, `--overwrite` and `--json` of the commands that write models.
struct OutputFlags {
  std::filesystem::path path;
  bool overwrite = false, json = false;
  bool is_file() const { return path.extension() == ".gguf"; }  ///< else a directory to create
};
void add_output_flags(CLI::App& command, OutputFlags& flags, const std::string& description);
/// @throws ConfigError naming --output if it exists and may not be replaced. Only files, and
/// directories that hold a model or an adapter, are replaced.
void check_output(const OutputFlags& output);
/// @throws ConfigError if replacing the output would remove `input`. @param input a model or an
/// adapter; empty: none
void require_apart(const OutputFlags& output, const std::filesystem::path& input);

/// "auto", "gpu" or "cpu", as in torchrun, or a number of processes.
CLI::Validator process_count();
/// Applies the launch settings of Accelerate's file and of the machine file where no flag is given.
/// They describe launches, so they are not used in workers.
void apply_launch_files(TrainOptions& options, const CLI::App& command);

/// nullopt for a text that was not given.
inline std::optional<std::string> if_given(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

/// Checks the command for unknown flags and words, and for words before it. @throws ConfigError that
/// suggests the nearest flag, or says where the words belong
void check_extras(const CLI::App& command);

/// Lets the command's flags that take a path read `~` as a home directory, and "none", "None", "null" and the like as if the flag had
/// not been given (core/user_path.h).
void read_paths(CLI::App& command);

/// Rewrites `--nproc_per_node` to `--nproc-per-node`, up to the first "--".
std::vector<std::string> with_hyphens(int argc, const char* const* argv);

}  // namespace sftrun::app
