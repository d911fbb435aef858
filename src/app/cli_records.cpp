#include <fmt/format.h>
#include <fnmatch.h>

#include <filesystem>
#include <utility>

#include "cli.h"
#include "data_source_finder.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/data/input_records.h"

/// Input and output of commands that process records.
namespace sftrun::app {

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

}  // namespace sftrun::app
