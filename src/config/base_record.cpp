#include "sftrun/config/base_record.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "choices.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kRecordFix = "copy or download the adapter again";

constexpr auto kBaseKeys = std::to_array<const char*>(
    {"quant", "double_quant", "quant_block_size", "quant_embeddings", "skip_modules"});

/// Reads the keys of the file. Only sftrun writes it, so a key that is not as written is damage.
class RecordReader {
 public:
  RecordReader(const Json& json, const std::string& where) : json_(json), where_(where) {
    if (!json.is_object()) fail("it is not a JSON object");
  }

  std::string text(const char* key) const {
    const Json& value = at(json_, key);
    if (!value.is_string()) fail_type(key, "a text", value);
    return value.get<std::string>();
  }
  std::string text_or(const char* key, const std::string& otherwise) const {
    return json_.contains(key) ? text(key) : otherwise;
  }
  std::string text_or_null(const char* key) const {
    return at(json_, key).is_null() ? "" : text(key);
  }
  std::vector<double> finite_numbers(const char* key) const {
    if (!json_.contains(key)) return {};
    const Json& values = json_.at(key);
    if (!values.is_array()) fail_type(key, "a list of numbers", values);
    std::vector<double> numbers;
    for (const Json& value : values) {
      if (!value.is_number() || !std::isfinite(value.get<double>()))
        fail_type(fmt::format("{}[{}]", key, numbers.size()), "a finite number", value);
      numbers.push_back(value.get<double>());
    }
    return numbers;
  }
  TuningConfig tuning() const {
    const Json& written = at(json_, "tuning");
    if (!written.is_object()) fail_type("tuning", "an object", written);
    Json config = config::to_json(RunConfig{});
    if (is_pissa()) config["tuning"]["lora"]["init"] = word_of(LoraInit::kPissa);
    for (const char* key : kBaseKeys) {
      Json& setting = config["tuning"][key];
      const bool may_be_null = setting.is_null();
      setting = at(written, key, "tuning.");
      if (!may_be_null || !setting.is_null()) require_setting(config, key);
    }
    return config::from_json(config).tuning;
  }

 private:
  const Json& at(const Json& object, const char* key, const char* section = "") const {
    const auto found = object.find(key);
    if (found == object.end()) fail(fmt::format("`{}{}` is missing", section, key));
    return *found;
  }
  bool is_pissa() const {
    if (!json_.contains("pissa")) return false;
    const Json& value = json_.at("pissa");
    if (!value.is_boolean()) fail_type("pissa", "true or false", value);
    return value.get<bool>();
  }
  /// null means the default to from_json.
  void require_setting(const Json& config, const char* key) const {
    const Json& value = config.at("tuning").at(key);
    try {
      config::from_json(config);
      if (!value.is_null()) return;
    } catch (const ConfigError&) {  // the file is no configuration, of which its message speaks
    }
    fail_type(fmt::format("tuning.{}", key), "a value of that setting", value);
  }
  [[noreturn]] void fail_type(const std::string& key, const char* wanted, const Json& value) const {
    fail(fmt::format("`{}` is not {}: {}", key, wanted, excerpt(dump_python_json(value))));
  }
  [[noreturn]] void fail(const std::string& reason) const {
    throw DataError("the file is damaged: " + reason, where_, kRecordFix);
  }

  const Json& json_;
  const std::string& where_;
};

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
  const RecordReader reader(json, where);
  return {.model = reader.text("model"),
          .fingerprint = reader.text("fingerprint"),
          .form = reader.text_or_null("form"),
          .dtype = reader.text("dtype"),
          .tuning = reader.tuning(),
          .norms = reader.finite_numbers("norms"),
          .layout = reader.text_or("layout", "")};
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
  if (!has_optional_file(file)) return std::nullopt;
  const auto json = parse_python_json<Json>(read_utf8_file(file));
  if (json.is_discarded())
    throw DataError("the file is damaged: not valid JSON", file.string(), kRecordFix);
  return BaseRecord::from_json(json, file.string());
}

}  // namespace sftrun::config
