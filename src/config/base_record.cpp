#include "sftrun/config/base_record.h"

#include <fmt/format.h>

#include <array>

#include "choices.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/json_reason.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kBaseKeys = std::to_array<const char*>(
    {"quant", "double_quant", "quant_block_size", "quant_embeddings", "skip_modules"});

}  // namespace

std::string BaseRecord::words() const {
  if (form.empty()) return dtype;
  if (!tuning.quantises_base()) return form + ", as in the files";
  const char* ends = tuning.quant_embeddings.value_or(false) ? ", with embedding and head" : "";
  const QuantOptions options = *tuning.quant_options();
  if (!quant_info(options.format).has_blocks) return form + ends;
  return fmt::format("{} in blocks of {}{}{}", form, options.block_size,
                     options.nested ? " with quantised scales" : "", ends);
}

Json BaseRecord::to_json() const {
  RunConfig config;
  config.tuning = tuning;
  const Json all = config::to_json(config)["tuning"];
  Json kept = Json::object();
  for (const char* key : kBaseKeys) kept[key] = all[key];
  return {{"model", model},
          {"fingerprint", fingerprint},
          {"form", form.empty() ? Json() : Json(form)},
          {"dtype", dtype},
          {"pissa", pissa()},
          {"tuning", kept},
          {"norms", norms},
          {"layout", layout}};
}

BaseRecord BaseRecord::from_json(const Json& json, const std::string& where) {
  try {
    Json config = config::to_json(RunConfig{});
    for (const char* key : kBaseKeys) config["tuning"][key] = json.at("tuning").at(key);
    if (json.value("pissa", false)) config["tuning"]["lora"]["init"] = word_of(LoraInit::kPissa);
    const Json& form = json.at("form");
    return {.model = json.at("model").get<std::string>(),
            .fingerprint = json.at("fingerprint").get<std::string>(),
            .form = form.is_null() ? "" : form.get<std::string>(),
            .dtype = json.at("dtype").get<std::string>(),
            .tuning = config::from_json(config).tuning,
            .norms = json.value("norms", std::vector<double>()),
            .layout = json.value("layout", "")};
  } catch (const Json::exception& error) {
    throw DataError(fmt::format("does not describe the base of an adapter: {}", json_reason(error)),
                    where);
  } catch (const ConfigError& error) {
    throw DataError(fmt::format("does not describe the base of an adapter: {}", error.message()),
                    where);
  }
}

std::string quantised_path(const TuningConfig& tuning, const std::string& model) {
  return fmt::format("{}-{}", model, tuning.quant_name());
}

std::string quantize_command(const TuningConfig& tuning, const std::string& model) {
  std::string command =
      fmt::format("sftrun quantize --model {} --method {}", shell_word(model), tuning.quant_name());
  const QuantFormatInfo& format = quant_info(tuning.quant_options()->format);
  if (format.has_blocks && tuning.quant_block_size != TuningConfig().quant_block_size)
    command += fmt::format(" --block-size {}", tuning.quant_block_size);
  if (format.can_nest && !tuning.double_quant) command += " --no-double-quant";
  for (const std::string& name : tuning.skip_modules)
    command += " --skip-modules " + shell_word(name);
  return command + " --output " + shell_word(quantised_path(tuning, model));
}

std::string dense_when_written(const TuningConfig& tuning, bool has_experts) {
  std::string dense = tuning.quant_embeddings.value_or(false) ? "embedding and head" : "";
  if (has_experts) dense += dense.empty() ? "experts" : ", and experts";
  return dense;
}

std::optional<BaseRecord> read_base_record(const std::filesystem::path& adapter) {
  const std::filesystem::path file = adapter / kBaseRecordFile;
  if (!leads_to_file(file)) return std::nullopt;
  return BaseRecord::from_json(
      Json::parse(read_utf8_file(file), nullptr, /*allow_exceptions=*/false), file.string());
}

}  // namespace sftrun::config
