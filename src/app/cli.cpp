#include "cli.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "data_source_finder.h"
#include "model_source.h"
#include "sftrun/config/run_config.h"
#include "sftrun/core/dtype.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/finite_json.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/quant_format.h"
#include "sftrun/core/short_quotes.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/user_path.h"
#include "sftrun/core/verbosity.h"
#include "sftrun/data/input_records.h"
#include "sftrun/launch/cpu_topology.h"
#include "sftrun/observe/run_report.h"

namespace sftrun::app {
namespace {

constexpr std::string_view kCommandLine = "the command line";

std::string full_name(const CLI::App& command) {
  std::string name = command.get_name();
  for (const CLI::App* parent = command.get_parent(); parent != nullptr;
       parent = parent->get_parent()) {
    name = parent->get_name() + " " + name;
  }
  return name;
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;  // hidden: between processes of sftrun
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

std::string spelled(const std::vector<std::string>& words) {
  return joined(words, " or ");
}

/// Names of the commands that take the flag.
void find_takers(const CLI::App& app, const std::string& flag, std::vector<std::string>& names) {
  const std::vector<std::string> flags = flags_of(app);
  if (std::find(flags.begin(), flags.end(), flag) != flags.end())
    names.push_back(fmt::format("`{}`", full_name(app)));
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    find_takers(*command, flag, names);
}

/// Which commands take a flag that `command` does not take. "": none
std::string other_takers(const CLI::App& command, const std::string& flag) {
  constexpr size_t kMaxNames = 3;
  const CLI::App* root = &command;
  while (root->get_parent() != nullptr) root = root->get_parent();
  std::vector<std::string> names;
  find_takers(*root, flag, names);
  if (names.empty() || flag == "--help") return {};
  const bool is_of_runs = command.get_option_no_throw("overrides") != nullptr;
  if (is_of_runs && std::find(names.begin(), names.end(), "`sftrun train`") != names.end())
    return fmt::format("`{}` has no such flag; `sftrun train --dry-run {}` has it",
                       full_name(command), flag);
  const size_t more = names.size() - std::min(names.size(), kMaxNames);
  names.resize(names.size() - more);
  const std::string listed =
      more > 0 ? fmt::format("{} and {} more", join(names, ", "), more) : joined(names, " and ");
  return fmt::format("`{}` has no such flag; {} {} it", full_name(command), listed,
                     names.size() + more == 1 ? "has" : "have");
}

/// Advice to use a flag that `command` does not take names the command that does.
std::string advice_of_flags(const CLI::App& command, const std::string& advice) {
  constexpr std::string_view kUse = "use the flag ";
  if (!advice.starts_with(kUse)) return advice;
  const std::string rest = advice.substr(kUse.size());
  const std::string flag = rest.substr(0, rest.find_first_of(" ,;"));
  if (command.get_option_no_throw(flag) != nullptr) return advice;
  const std::string takers = other_takers(command, flag);
  return takers.empty() ? advice : takers;
}

std::string unknown_flag_fix(const CLI::App& command, const std::string& flag) {
  if (flag.find('.') != std::string::npos) {
    return fmt::format("write it without dashes: {}=VALUE",
                       flag.substr(flag.find_first_not_of('-')));
  }
  if (command.get_option_no_throw("overrides") != nullptr) {
    std::string name = flag.substr(flag.find_first_not_of('-'));
    std::replace(name.begin(), name.end(), '-', '_');
    const std::string setting = config::setting_named(name), advice = config::advice_on_key(name);
    const std::string how =
        setting.empty() ? ""
                        : fmt::format("settings are written without dashes: {}=VALUE", setting);
    const bool is_plain = advice.empty() || advice == fmt::format("use `{}`", setting);
    if (!advice.empty() && !is_plain) {
      const std::string shown = advice_of_flags(command, advice);
      return how.empty() ? shown : shown + "; " + how;
    }
    if (!how.empty()) return how;
  }
  if (const std::string takers = other_takers(command, flag); !takers.empty()) return takers;
  std::vector<std::string> flags = flags_of(command);
  std::erase(flags, "--help");  // short, so it is near to many others
  const auto longer = std::find_if(flags.begin(), flags.end(), [&](const std::string& known) {
    return flag.size() > 4 && known.starts_with(flag);
  });
  const std::string near = longer != flags.end() ? *longer : nearest(flag, flags);
  if (!near.empty()) return fmt::format("did you mean {}?", near);
  return fmt::format("`{} --help` lists every flag", full_name(command));
}

/// The .gguf file that the adapter was trained on, if it still exists. adapter_config.json names
/// the model from which the file was converted, because other programs can load that one.
std::string gguf_of_run(const std::filesystem::path& adapter) {
  const std::filesystem::path run = observe::run_directory_of(adapter);
  if (run.empty()) return {};
  try {
    const std::filesystem::path path = observe::read_run_report(run / "run.json").base_model_path;
    const bool is_gguf = ascii_lower(path.extension().string()) == ".gguf";
    return is_gguf && is_plain_file(path) ? path.string() : "";
  } catch (const Error&) {
    return {};  // run.json was not written by sftrun
  }
}

}  // namespace

ModelAsked base_of(const std::filesystem::path& adapter) {
  const std::filesystem::path file = adapter / "adapter_config.json";
  const auto json = parse_python_json(read_utf8_file(file));
  if (!json.is_object())
    throw DataError("not a JSON object: the file is damaged or truncated", file.string(),
                    "copy or download the adapter again");
  const auto text = [&](const char* key) {
    const auto found = json.find(key);
    const std::string value =
        found != json.end() && found->is_string() ? found->get<std::string>() : "";
    if (value.find('\0') != std::string::npos)
      throw DataError(fmt::format("`{}` has a NUL byte", key), file.string(), "remove it");
    return value;
  };
  ModelAsked base{.name = text("base_model_name_or_path"),
                  .revision = text("revision"),
                  .where = file.string()};
  if (!leads_to_file(base.name)) {
    if (const std::string gguf = gguf_of_run(adapter); !gguf.empty())
      return {.name = gguf, .where = file.string()};
  }
  if (!base.name.empty()) return base;
  throw DataError("the adapter does not say which model it was trained on", file.string(),
                  "name the model with --model, or write it there as base_model_name_or_path");
}

HelpFormatter::HelpFormatter() {
  constexpr size_t kColumnWidth = 36;
  column_width(kColumnWidth);
}

std::string HelpFormatter::make_option_name(const CLI::Option* option, bool is_positional) const {
  constexpr std::string_view kNegated = "{false}";  // CLI11's mark of --no-chat
  std::string name = CLI::Formatter::make_option_name(option, is_positional);
  if (const size_t at = name.find(kNegated); at != std::string::npos)
    name.erase(at, kNegated.size());
  return name;
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  // CLI11 writes type:validator; the validator's words are enough.
  const std::string type = option->get_type_name();
  const std::string takes = type.substr(type.find(':') + 1);
  return takes.empty() ? "" : " " + takes;
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  const std::string initial = option->get_default_str();
  return option->get_description() + (initial.empty() ? "" : fmt::format(" [{}]", initial));
}

namespace {

/// Processes that the command starts inherit the variable.
void add_verbosity_flags(CLI::App& command) {
  const auto add = [&](const char* flag, const char* word, const char* description) {
    return command
        .add_flag_callback(
            flag, [word] { ::setenv(log::kVerbosityVariable, word, /*overwrite=*/1); }, description)
        ->group("Messages");
  };
  CLI::Option* quiet = add("--quiet", "quiet", "Print only warnings, errors and results");
  add("--verbose", "verbose", "Also print debug lines, and the log lines of every rank")
      ->excludes(quiet);
}

}  // namespace

CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& description,
                      const std::string& example) {
  CLI::App* command = parent.add_subcommand(name, description);
  command->allow_extras();
  command->footer("Example:\n  " + example);
  add_verbosity_flags(*command);
  return command;
}

namespace {

bool is_beyond_64_bits(const std::string& text) {
  int64_t ignored = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ignored);
  return error == std::errc::result_out_of_range && end == text.data() + text.size() &&
         !text.starts_with('-');
}

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Of numbers the one whose value is the nearest, else the word that is spelled alike.
std::string nearest_of(const std::string& text, const std::vector<std::string>& words) {
  const auto asked = whole_number(text);
  if (!asked || !std::all_of(words.begin(), words.end(), whole_number)) return nearest(text, words);
  const auto distance = [&](const std::string& word) {
    return std::abs(static_cast<double>(*whole_number(word)) - static_cast<double>(*asked));
  };
  return *std::min_element(words.begin(), words.end(),
                           [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
}

}  // namespace

CLI::Validator one_of(std::vector<std::string> words) {
  const std::string listed = join(words, "|");
  return CLI::Validator(
      [words = std::move(words)](std::string& text) -> std::string {
        if (std::find(words.begin(), words.end(), text) != words.end()) return {};
        const std::string near = nearest_of(text, words);
        return fmt::format("`{}` is not one of {}{}", excerpt(text), spelled(words),
                           near.empty() ? "" : fmt::format("; did you mean `{}`?", near));
      },
      listed);
}

void require_one_of(const std::string& flag, const std::string& text,
                    const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), text) != words.end()) return;
  const std::string near = nearest_of(text, words);
  throw ConfigError(fmt::format("`{}` is not one of {}", excerpt(text), spelled(words)),
                    flag + " on the command line",
                    near.empty() ? "write one of them" : fmt::format("did you mean `{}`?", near));
}

CLI::Validator compute_dtype() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (const auto dtype = float_dtype_named(text)) text = name_of(*dtype);
        return one_of({"auto", "fp32", "bf16", "fp16"})(text);
      },
      "auto|fp32|bf16|fp16");
}

CLI::Validator device_name() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        // By its letters it would be taken for `cpu`.
        if (ascii_lower(text) == "gpu")
          return fmt::format("`{}` is not one of auto, cuda or cpu; did you mean `cuda`?", text);
        return one_of({"auto", "cuda", "cpu"})(text);
      },
      "auto|cuda|cpu");
}

std::string other_base_error(const std::string& text) {
  constexpr std::string_view kPrefixes = "xXbBoO";
  const std::string_view trimmed = trim(text);
  const std::string_view digits =
      trimmed.substr(trimmed.starts_with('-') || trimmed.starts_with('+') ? 1 : 0);
  if (digits.size() < 2 || digits[0] != '0') return {};
  const bool has_prefix = kPrefixes.find(digits[1]) != std::string_view::npos;
  if (!has_prefix && (digits[1] < '0' || digits[1] > '9')) return {};
  return fmt::format("`{}` begins with {}: write a decimal number", excerpt(text),
                     digits.substr(0, has_prefix ? 2 : 1));
}

CLI::Validator at_least(int64_t min, int64_t max) {
  return CLI::Validator(
      [min, max](std::string& text) -> std::string {
        if (std::string error = other_base_error(text); !error.empty()) return error;
        int64_t number = 0;
        const bool is_beyond = is_beyond_64_bits(text);  // CLI11 takes the nearest number
        const bool is_number = CLI::detail::lexical_cast(text, number) && number >= min;
        if (is_number && !is_beyond && number <= max) return {};
        if (is_number || is_beyond)
          return fmt::format("`{}` is above the largest value, {}", excerpt(text), max);
        return fmt::format("`{}` is not a whole number of at least {}", excerpt(text), min);
      },
      "N");
}

CLI::Validator thread_count() {
  return at_least(1, launch::max_threads());
}

CLI::Validator in_range(double min, double max) {
  return CLI::Validator(
      [min, max](std::string& text) -> std::string {
        if (std::string error = other_base_error(text); !error.empty()) return error;
        double number = 0;
        if (CLI::detail::lexical_cast(text, number) && number >= min && number <= max) return {};
        return fmt::format("`{}` is not a number from {} to {}", excerpt(text), min, max);
      },
      "NUMBER");
}

void add_model_flags(CLI::App& command, std::string& model, std::string& adapter) {
  command.add_option(
      "-m,--model", model,
      "Directory in Hugging Face layout, .gguf file, or a name on the hub [the adapter's base]");
  command
      .add_option("--adapter", adapter,
                  "PEFT adapter: its directory, a run directory, or a name on the hub")
      ->type_name("ADAPTER");
}

void add_compute_flags(CLI::App& command, ComputeRequest& flags) {
  command.add_option("--device", flags.device, "Device to compute on")
      ->check(device_name())
      ->capture_default_str();
  command
      .add_option("--dtype", flags.dtype,
                  "Compute dtype; auto: bf16 if the hardware supports it, else fp32")
      ->transform(compute_dtype())
      ->capture_default_str();
  command.add_option("--threads", flags.threads, "CPU threads [all that the process may use]")
      ->check(thread_count());
}

void add_image_flags(CLI::App& command, ImageFlags& flags, const std::string& verb) {
  constexpr int64_t kMaxImages = 4096;
  command
      .add_option("--images", flags.of_sequence,
                  verb + " so many images in each packed sequence; needs a model with images [0]")
      ->check(at_least(1, kMaxImages));
  command
      .add_option("--image-size", flags.size,
                  "Width and height of these images in pixels; the model's image processor makes "
                  "its own size of them")
      ->type_name("WIDTHxHEIGHT")
      ->capture_default_str();
}

void require_images_of_size(const CLI::App& command) {
  if (command.count("--images") > 0 || command.count("--image-size") == 0) return;
  throw ConfigError("--image-size is of the images that --images counts, and there is no --images",
                    "--image-size on the command line",
                    "add --images with the number of images in a sequence, or remove it");
}

void add_as_stored_flag(CLI::App& command, bool& as_stored) {
  command.add_flag("--as-stored", as_stored,
                   "Load the base model in the precision of its files [that of the adapter's "
                   "training run]");
}

namespace {

/// CLI::Validator: an error, or nothing.
std::string json_object_error(const std::string& text) {
  const auto value = parse_python_json<nlohmann::ordered_json>(text);
  if (const auto place = find_not_finite(value, ""))
    return fmt::format("`{}` is not a finite number", *place);
  if (value.is_object()) return {};
  return fmt::format("{} is not a JSON object: write '{{\"enable_thinking\": false}}'",
                     excerpt(text));
}

}  // namespace

void add_template_flag(CLI::App& command, std::string& variables) {
  command
      .add_option("--chat-template-kwargs", variables,
                  "Variables for the chat template; they override those of the training run: "
                  "'{\"enable_thinking\": false}'")
      ->check(CLI::Validator([](std::string& text) { return json_object_error(text); }, ""))
      ->type_name("JSON");
}

void add_overrides(CLI::App& command, std::vector<std::string>& overrides) {
  command
      .add_option("overrides", overrides,
                  "section.key=value: overrides of the configuration, as in train.epochs=1")
      ->type_name("");
}

namespace {

bool names_yaml(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml");
}

/// The YAML that the word names: a file, or that of a run by its directory or its adapter. "": none
std::string yaml_named_by(const std::string& word) {
  if (names_yaml(word)) return word;
  if (word.empty() || !leads_to_file(word)) return {};
  for (const std::filesystem::path& run :
       {std::filesystem::path(word), observe::run_directory_of(word)}) {
    const std::filesystem::path yaml = run / "config.resolved.yaml";
    if (!run.empty() && leads_to_file(yaml)) return yaml.string();
  }
  return {};
}

}  // namespace

void require(bool given, const CLI::App& command, const std::string& flag) {
  if (given) return;
  throw ConfigError(fmt::format("`{}` requires {}", full_name(command), flag),
                    std::string(kCommandLine),
                    fmt::format("`{} --help` shows how to call it", full_name(command)));
}

void require_config(const CLI::App& command, const std::filesystem::path& config,
                    const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    const std::string yaml = config.empty() ? yaml_named_by(word) : "";
    if (yaml.empty()) continue;
    throw ConfigError(fmt::format("`{}` requires --config", full_name(command)),
                      std::string(kCommandLine), "write --config " + shell_word(yaml));
  }
  require(!config.empty(), command, "--config");
  require_exists("--config", config);
}

void require_at_most_one(const CLI::App& command, const std::vector<std::string>& flags) {
  std::vector<std::string> given;
  for (const std::string& flag : flags) {
    if (command.count(flag) > 0) given.push_back(flag);
  }
  if (given.size() <= 1) return;
  throw ConfigError(fmt::format("{} cannot be used together", join(given, " and ")),
                    std::string(kCommandLine), "keep one of them");
}

void require_exists(const std::string& flag, const std::filesystem::path& path) {
  if (leads_to_file(path)) return;
  throw DataError(fmt::format("no such file or directory: {}", shown_path(path.string())),
                  fmt::format("{} on the command line", flag),
                  "check the path; it is relative to the current directory");
}

void require_writable_file(const std::string& flag, const std::filesystem::path& path) {
  const std::string where = fmt::format("{} on the command line", flag);
  if (is_folder(path)) {
    throw ConfigError(fmt::format("{} is a directory", path.string()), where, "name a file");
  }
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  if (!is_folder(parent)) {
    throw ConfigError(fmt::format("no such directory: {}", shown_path(parent.string())), where,
                      fmt::format("mkdir -p {}", parent.string()));
  }
}

void require_page(const std::string& flag, const std::filesystem::path& path) {
  require_writable_file(flag, path);
  const bool is_page = path.extension() == ".html" || path.extension() == ".htm";
  if (is_page || !leads_to_file(path)) return;
  throw ConfigError(fmt::format("{} exists and is not an HTML page", path.string()),
                    fmt::format("{} on the command line", flag),
                    "name a file that ends in .html; other files are not overwritten");
}

void add_record_flags(CLI::App& command, RecordFlags& flags, const std::string& holds,
                      const std::string& written) {
  command
      .add_option("--input", flags.input,
                  fmt::format("Records with {}: a file, a folder, a glob pattern or a data set on "
                              "the hub, as for data.train; -: standard input",
                              holds))
      ->type_name("DATA");
  command.add_option("--subset", flags.subset, "Subset of a data set [the default one]")
      ->type_name("NAME");
  command
      .add_option("--split", flags.split, "Split of a folder or of a data set on the hub [train]")
      ->type_name("NAME");
  command
      .add_option("--output", flags.output,
                  fmt::format("Write {} to this file as JSON lines; -: standard output", written))
      ->type_name("FILE");
  command.add_flag("--overwrite", flags.overwrite,
                   flags.replaces_jsonl ? "Replace --output if it exists; .jsonl files always are"
                                        : "Replace --output if it exists");
}

config::DataSource input_of(const RecordFlags& flags) {
  config::DataSource input;
  input.path = flags.input;
  input.name = flags.subset;
  input.split = flags.split;
  return input;
}

InputRequest input_request(const RecordFlags& flags) {
  return {.input = if_given(flags.input), .subset = flags.subset, .split = flags.split};
}

namespace {

/// Finds the input, and errors in its name, before a model is loaded.
void find_input(RecordFlags& flags) {
  const bool has_parts = !flags.input.empty() && flags.input != "-";
  if (!has_parts && !(flags.subset.empty() && flags.split.empty())) {
    throw ConfigError("--subset and --split choose among the files of --input",
                      std::string(kCommandLine), "leave them out, or name a folder with --input");
  }
  if (!has_parts) return;
  if (!may_be_on_hub(flags.input) && !is_glob(flags.input)) require_exists("--input", flags.input);
  for (const auto& [flag, value] :
       {std::pair("--subset", &flags.subset), {"--split", &flags.split}}) {
    if (value->empty() || !is_plain_file(flags.input)) continue;
    throw ConfigError(fmt::format("{} has no effect: {} is one file", flag, flags.input),
                      fmt::format("{} on the command line", flag),
                      "leave it out, or name a folder with --input");
  }
  config::DataSource input = input_of(flags);
  find_data_source(input, SplitRole::kTrain, "--input on the command line", /*quiet=*/false);
  flags.input = input.path;
  data::input_files(input);
}

/// Else the command would read its own output when it is repeated.
void require_apart_from_input(const RecordFlags& flags) {
  namespace fs = std::filesystem;
  if (flags.input.empty() || flags.input == "-") return;
  std::error_code ignored;
  const fs::path below = fs::weakly_canonical(flags.output, ignored)
                             .lexically_relative(fs::weakly_canonical(flags.input, ignored));
  std::string problem;
  if (is_folder(flags.input) && !below.empty() && *below.begin() != "..")
    problem = "is in the folder that --input reads";
  if (is_glob(flags.input) && ::fnmatch(flags.input.c_str(), flags.output.c_str(), 0) == 0)
    problem = "is among the files that --input names";
  for (const fs::path& file : data::input_files(input_of(flags))) {
    if (fs::equivalent(file, flags.output, ignored)) problem = "is the file that --input reads";
  }
  if (problem.empty()) return;
  throw ConfigError(fmt::format("{} {}", flags.output, problem), "--output on the command line",
                    "name another file");
}

}  // namespace

bool is_stream(const RecordFlags& flags) {
  const bool is_special = leads_to_file(flags.output) && !is_plain_file(flags.output);
  return flags.input == "-" || flags.output == "-" || is_special;
}

void check_record_flags(RecordFlags& flags) {
  find_input(flags);
  if (flags.output.empty() || flags.output == "-") return;
  require_writable_file("--output", flags.output);
  std::error_code ignored;
  const bool holds_something =
      is_plain_file(flags.output) && !std::filesystem::is_empty(flags.output, ignored);
  require_apart_from_input(flags);
  const bool is_own = flags.replaces_jsonl && flags.output.ends_with(".jsonl");
  if (!holds_something || flags.overwrite || is_own) return;
  throw ConfigError(fmt::format("{} exists", flags.output), "--output on the command line",
                    "name another file, or add --overwrite to replace it");
}

std::string checked_model(const CLI::App& command, const std::string& model,
                          const std::string& adapter, hub::ModelParts parts) {
  const bool takes_adapter = command.get_option_no_throw("--adapter") != nullptr;
  require(!model.empty() || !adapter.empty(), command,
          takes_adapter ? "--model or --adapter" : "--model");
  if (!adapter.empty()) require_exists("--adapter", adapter);
  ModelAsked asked = model.empty()
                         ? base_of(adapter)
                         : ModelAsked{.name = model, .where = "--model on the command line"};
  asked.parts = parts;
  if (takes_adapter && adapter.empty()) asked.adapter_way = AdapterWay::kFlag;
  return find_model(asked).path.string();
}

std::string model_name(const std::string& model, const std::string& adapter) {
  return model.empty() ? base_of(adapter).name : model;
}

void find_adapter(std::string& adapter) {
  if (adapter.empty()) return;
  adapter = find_adapter({.name = adapter, .where = "--adapter on the command line"}).string();
}

void add_quant_flags(CLI::App& command, QuantRequest& flags, const std::string& block_size) {
  command
      .add_option("--block-size", flags.block_size,
                  fmt::format("{}: values that share a scale [{}]",
                              join(quant_names(&QuantFormatInfo::has_blocks), ", "), block_size))
      ->check(one_of({"32", "64", "128", "256", "512", "1024", "2048", "4096"}));
  command.add_flag("--no-double-quant", flags.no_double_quant,
                   join(quant_names(&QuantFormatInfo::can_nest), ", ") +
                       ": keep block scales in fp32 (4.5 bits per value, not 4.13)");
  command
      .add_option("--skip-modules", flags.skip_modules,
                  "Modules that are not quantised: names or parts of names")
      ->type_name("NAME");
}

void check_quant_flags(const CLI::App& command, const std::string& flag,
                       const std::string& method) {
  struct Flag {
    const char* name;
    bool QuantFormatInfo::*formats;  ///< those that it is for
  };
  const QuantFormatInfo* format = find_quant_format(method);
  for (const auto& [given, formats] : {Flag{"--block-size", &QuantFormatInfo::has_blocks},
                                       Flag{"--no-double-quant", &QuantFormatInfo::can_nest},
                                       Flag{"--skip-modules", &QuantFormatInfo::is_made}}) {
    if (command.count(given) == 0 || (format != nullptr && format->*formats)) continue;
    throw ConfigError(fmt::format("{} is only for {}, but {} is {}", given,
                                  join(quant_names(formats), ", "), flag, method),
                      fmt::format("{} on the command line", given), "remove it");
  }
}

namespace {

std::string without_value(const std::string& word) {
  return word.substr(0, word.find('='));
}

[[noreturn]] void refuse_flag(const CLI::App& command, const std::string& flag) {
  throw ConfigError(fmt::format("unknown flag {}", excerpt(flag)), std::string(kCommandLine),
                    unknown_flag_fix(command, flag));
}

/// Whether the command takes the word as an argument without a flag. Overrides have a form.
bool takes_argument(const CLI::App& command, const std::string& word) {
  const std::vector<const CLI::Option*> options = command.get_options();
  return std::any_of(options.begin(), options.end(), [&](const CLI::Option* option) {
    const bool is_override = option->get_name() == "overrides";
    return option->get_positional() && (!is_override || word.find('=') != std::string::npos);
  });
}

/// What to do with words that stand before the command.
std::string fix_of_words_before(const CLI::App& command, const std::vector<std::string>& words) {
  const std::string& first = words.front();
  std::string written;
  if (first.starts_with('-') || takes_argument(command, first)) {
    for (const std::string& word : words) written += " " + shell_word(word);
  } else if (names_yaml(first) && command.get_option_no_throw("--config") != nullptr) {
    written = " --config " + shell_word(first);
  }
  return written.empty()
             ? "remove it"
             : fmt::format("write it after the command: {}{}", full_name(command), written);
}

/// CLI11 leaves what stands before a command to the parent, which would ignore it.
void check_words_before(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::App* parent = command.get_parent(); parent != nullptr;
       parent = parent->get_parent()) {
    const std::vector<std::string> before = parent->remaining();
    words.insert(words.begin(), before.begin(), before.end());
  }
  if (words.empty()) return;
  const std::string first = without_value(words.front());
  if (first.starts_with('-') && command.get_option_no_throw(first) == nullptr)
    refuse_flag(command, first);
  throw ConfigError(fmt::format("`{}` stands before the command `{}`", excerpt(words.front()),
                                command.get_name()),
                    std::string(kCommandLine), fix_of_words_before(command, words));
}

}  // namespace

void check_extras(const CLI::App& command) {
  check_words_before(command);
  const std::vector<std::string> extras = command.remaining();
  if (extras.empty()) return;
  const std::string word = without_value(extras.front());
  if (word.starts_with('-')) refuse_flag(command, word);
  throw ConfigError(fmt::format("unexpected argument `{}`", excerpt(extras.front())),
                    std::string(kCommandLine),
                    fmt::format("`{} --help` shows how to call it", full_name(command)));
}

namespace {

/// Flags and arguments that name a file or a directory, in all commands.
constexpr std::array<std::string_view, 17> kPaths = {
    "config",    "model",        "adapter", "checkpoint", "input",
    "output",    "predictions",  "data",    "arch",       "html",
    "file",      "run_dirs",     "resume",  "profile",    "accelerate-config",
    "deepspeed", "reward-config"};

/// What "none" means for a flag.
std::string none_of(const std::string& command, const std::string& flag) {
  if (flag == "resume") return "never";
  return command == "eval" && flag == "adapter" ? "none" : "";
}

/// Also of "NAME=~/adapter".
std::string expanded_path(const std::string& flag, const std::string& text) {
  const size_t sign = flag == "adapter" ? text.find('=') : std::string::npos;
  if (sign == std::string::npos || text.starts_with('~')) return expanded_home(text);
  return text.substr(0, sign + 1) + expanded_home(text.substr(sign + 1));
}

}  // namespace

void read_paths(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const std::string name =
        option->get_lnames().empty() ? option->get_name() : option->get_lnames().front();
    if (std::find(kPaths.begin(), kPaths.end(), name) == kPaths.end()) continue;
    option->transform(CLI::Validator(
        [name, none = none_of(command.get_name(), name)](std::string& text) {
          text = is_none_word(text) ? none : expanded_path(name, text);
          return std::string();
        },
        /*description=*/""));
  }
}

std::vector<std::string> with_hyphens(int argc, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::string& word : words) {
    if (word == "--") break;
    if (!word.starts_with("--")) continue;
    // Not in --train.batch_size=4, where the underscore is the key's.
    const size_t end = std::min(word.find('='), word.size());
    if (word.find('.') < end) continue;
    std::replace(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  }
  return words;
}

}  // namespace sftrun::app
