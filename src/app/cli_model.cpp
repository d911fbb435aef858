#include <fmt/format.h>

#include "cli.h"
#include "model_source.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/outside_json.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/observe/run_report.h"

/// Which model and adapter a command loads.
namespace sftrun::app {
namespace {

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
    const std::string value = text_under(json, key);
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

void add_model_flags(CLI::App& command, std::string& model, std::string& adapter) {
  command.add_option(
      "-m,--model", model,
      "Directory in Hugging Face layout, .gguf file, or a name on the hub [the adapter's base]");
  command
      .add_option("--adapter", adapter,
                  "PEFT adapter: its directory, a run directory, or a name on the hub")
      ->type_name("ADAPTER");
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

}  // namespace sftrun::app
