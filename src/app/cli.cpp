#include "cli.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

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
#include "sftrun/observe/run_report.h"

namespace sftrun::app {

std::string full_name(const CLI::App& command) {
  std::string name = command.get_name();
  for (const CLI::App* parent = command.get_parent(); parent != nullptr;
       parent = parent->get_parent()) {
    name = parent->get_name() + " " + name;
  }
  return name;
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

bool names_yaml(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml");
}

namespace {

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
