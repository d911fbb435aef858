#include "checkpoint_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>

#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/presence.h"

namespace sftrun::train {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 4;

std::string sum_of(std::span<const std::byte> bytes) {
  constexpr size_t kPiece = size_t{64} << 20;  // of whole words, so that the sum is that of all
  Fingerprint sum;
  for (size_t at = 0; at < bytes.size(); at += kPiece) {
    interruption_point();
    const auto piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    sum.add(piece.data(), piece.size());
  }
  return sum.hex();
}
std::string sum_of(const std::string& text) {
  return sum_of(std::as_bytes(std::span(text)));
}
std::string fingerprint_of(const fs::path& path) {
  return sum_of(MappedFile(path).bytes());
}

// The first key of state.json is the fingerprint of the same object without that key. So every byte
// is checked, either against this text or by the fingerprint.
constexpr std::string_view kBeforeSum = "{\n  \"fingerprint\": \"", kAfterSum = "\",";
constexpr size_t kSumDigits = 32;

/// @param object text of a JSON object, with its braces
std::string sealed(const std::string& object) {
  return fmt::format("{}{}{}{}", kBeforeSum, sum_of(object), kAfterSum, object.substr(1));
}

/// The object without its fingerprint; empty if the file was changed after it was written.
std::string unsealed(const std::string& text) {
  const size_t body = kBeforeSum.size() + kSumDigits + kAfterSum.size();
  if (text.size() < body || !text.starts_with(kBeforeSum) ||
      text.compare(body - kAfterSum.size(), kAfterSum.size(), kAfterSum) != 0)
    return "";
  std::string object = "{" + text.substr(body);
  return text.compare(kBeforeSum.size(), kSumDigits, sum_of(object)) == 0 ? object : "";
}

[[noreturn]] void fail_damaged(const fs::path& checkpoint) {
  throw DataError("the checkpoint's state file is damaged", (checkpoint / kStateFile).string(),
                  kDamageFix);
}

/// Written by an older version of this program: without a fingerprint, or with fewer fields in its
/// identity.
bool is_of_an_older_version(const std::string& text, const std::string& object) {
  const bool is_sealed = !object.empty();
  const Json json = Json::parse(is_sealed ? object : text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  return json.value("format", Json()) == (is_sealed ? kFormat - 1 : 2) &&
         (is_sealed || !json.contains("fingerprint"));
}

/// Whether a run computes in fp16.   @pre json["identity"] is an object
bool is_in_fp16(const Json& json) {
  const Json settings = json["identity"].value("config", Json::object());
  return settings.is_object() && settings.value("model.dtype", Json()) == "fp16";
}

/// Whether loss_scale is present and valid in an fp16 run, and absent in all others.
bool is_usable_scale(const Json& json) {
  if (json.contains("loss_scale") != is_in_fp16(json)) return false;
  if (!json.contains("loss_scale")) return true;
  const Json& scale = json["loss_scale"];
  const bool has_types =
      scale.is_object() && scale.contains("value") && scale["value"].is_number() &&
      scale.contains("finite_steps") && scale["finite_steps"].is_number_unsigned() &&
      scale.contains("skipped_steps") && scale["skipped_steps"].is_number_unsigned();
  return has_types &&
         LossScale::is_possible({.value = scale["value"].get<double>(),
                                 .finite_steps = scale["finite_steps"].get<int64_t>(),
                                 .skipped_steps = scale["skipped_steps"].get<int64_t>()},
                                json["step"].get<int64_t>());
}

/// Whether the state of the best evaluation is absent or valid.
bool is_usable_best(const Json& json) {
  if (!json.contains("best")) return true;
  const Json& best = json["best"];
  const auto is = [&](const char* key, auto has_type) {
    return best.contains(key) && (best[key].*has_type)();
  };
  return best.is_object() && is("metric", &Json::is_string) &&
         is("greater_is_better", &Json::is_boolean) &&
         is("num_evaluations", &Json::is_number_unsigned) && best.contains("value") &&
         (best["value"].is_number() || best["value"].is_null()) &&
         is("step", &Json::is_number_unsigned) && is("num_worse", &Json::is_number_unsigned) &&
         best["step"].get<int64_t>() <= json["step"].get<int64_t>();
}

/// Whether a key is absent or has a type.
template <class HasType>
bool is_absent_or(const Json& json, const char* key, HasType has_type) {
  return !json.contains(key) || (json[key].*has_type)();
}

bool is_usable_builds(const Json& json) {
  if (!json.contains("builds")) return true;
  const Json& builds = json["builds"];
  return builds.is_array() && std::all_of(builds.begin(), builds.end(), [](const Json& build) {
           return build.is_object() && build.contains("version") && build["version"].is_string() &&
                  build.contains("build") && build["build"].is_string() &&
                  build.contains("from_step") && build["from_step"].is_number_unsigned();
         });
}

bool is_usable(const Json& json) {
  const auto is = [&](const char* key, auto has_type) {
    return json.contains(key) && (json[key].*has_type)();
  };
  return json.is_object() && json.value("format", Json()) == kFormat &&
         is("step", &Json::is_number_unsigned) &&
         is("optimizer_steps", &Json::is_number_unsigned) &&
         is("tokens", &Json::is_number_unsigned) && is("trained_seconds", &Json::is_number) &&
         is("rendered_at_unix_s", &Json::is_number_integer) && is("identity", &Json::is_object) &&
         is("files", &Json::is_object) && is_usable_scale(json) && is_usable_best(json) &&
         is_absent_or(json, "evaluation_due", &Json::is_boolean) && is_usable_builds(json) &&
         is_absent_or(json, "answer_seconds", &Json::is_number);
}

bool describes_a_file(const Json& entry) {
  return entry.is_object() && entry.contains("bytes") && entry["bytes"].is_number_unsigned() &&
         entry.contains("fingerprint") && entry["fingerprint"].is_string();
}

void check_length(const fs::path& checkpoint, const std::string& name, uint64_t expected) {
  std::error_code code;
  const auto size = fs::file_size(checkpoint / name, code);
  if (!code && size == expected) return;
  throw DataError(code ? fmt::format("the checkpoint is incomplete: {} is missing", name)
                       : fmt::format("the checkpoint is incomplete: {} has {} bytes, expected {}",
                                     name, size, expected),
                  checkpoint.string(), kDamageFix);
}

}  // namespace

FileRecords record_of(const fs::path& file) {
  const MappedFile content(file);
  return {{"bytes", content.bytes().size()}, {"fingerprint", sum_of(content.bytes())}};
}

void write_state(const fs::path& directory, const TrainState& state, int64_t optimizer_steps,
                 FileRecords records) {
  Json json;
  json["format"] = kFormat;
  json["step"] = state.step;
  json["optimizer_steps"] = optimizer_steps;
  json["tokens"] = state.tokens;
  json["trained_seconds"] = state.trained_seconds;
  json["rendered_at_unix_s"] = state.rendered_at_unix_s;
  if (state.loss_scale) {
    json["loss_scale"] = {{"value", state.loss_scale->value},
                          {"finite_steps", state.loss_scale->finite_steps},
                          {"skipped_steps", state.loss_scale->skipped_steps}};
  }
  if (state.best) {
    json["best"] = {{"metric", state.best->metric},
                    {"greater_is_better", state.best->greater_is_better},
                    {"num_evaluations", state.best->num_evaluations},
                    {"value", nullptr},
                    {"step", state.best->step},
                    {"num_worse", state.best->num_worse}};
    if (state.best->value) json["best"]["value"] = *state.best->value;
  }
  if (state.evaluation_due) json["evaluation_due"] = true;
  if (state.answer_seconds > 0) json["answer_seconds"] = state.answer_seconds;
  if (!state.data_position.is_null()) json["data_position"] = state.data_position;
  if (!state.builds.empty()) json["builds"] = to_json(state.builds);
  json["identity"] = state.identity;
  for (const fs::path& entry : entries_of(directory)) {
    const std::string name = entry.filename().string();
    if (records.contains(name)) continue;
    if (!is_folder(entry)) {
      records[name] = record_of(entry);
      continue;
    }
    for (const fs::path& file : entries_of(entry))  // of sentence-transformers' modules
      records[name + "/" + file.filename().string()] = record_of(file);
  }
  json["files"] = std::move(records);
  write_file_atomically(directory / kStateFile, sealed(json.dump(2) + "\n"));
}

Json read_state_json(const fs::path& checkpoint, bool checks_lengths) {
  const fs::path path = checkpoint / kStateFile;
  std::error_code code;
  if (!fs::exists(path, code)) {
    throw DataError(code ? fmt::format("the checkpoint cannot be read: {}", code.message())
                         : fmt::format("the checkpoint is incomplete: {} is missing", kStateFile),
                    checkpoint.string(), kDamageFix);
  }
  const std::string text = read_text_file(path);
  const std::string object = unsealed(text);
  if (is_of_an_older_version(text, object)) {
    throw DataError("the checkpoint is of an older version of sftrun", path.string(),
                    "finish the run with the version that began it, or use another output.dir");
  }
  Json json = Json::parse(object, nullptr, /*allow_exceptions=*/false);
  if (!is_usable(json)) fail_damaged(checkpoint);
  for (const auto& [name, entry] : json["files"].items()) {
    if (!describes_a_file(entry)) fail_damaged(checkpoint);
    if (checks_lengths) check_length(checkpoint, name, entry["bytes"].get<uint64_t>());
  }
  return json;
}

Json to_json(const std::vector<Build>& builds) {
  Json json = Json::array();
  for (const Build& build : builds)
    json.push_back(
        {{"version", build.version}, {"build", build.id}, {"from_step", build.from_step}});
  return json;
}

std::vector<Build> builds_in(const Json& state) {
  std::vector<Build> builds;
  for (const Json& build : state.value("builds", Json::array()))
    builds.push_back({build["version"].get<std::string>(), build["build"].get<std::string>(),
                      build["from_step"].get<int64_t>()});
  return builds;
}

std::optional<BestState> best_in(const Json& state) {
  if (!state.contains("best")) return std::nullopt;
  const Json& json = state["best"];
  BestState best{.metric = json["metric"].get<std::string>(),
                 .greater_is_better = json["greater_is_better"].get<bool>(),
                 .num_evaluations = json["num_evaluations"].get<int64_t>(),
                 .step = json["step"].get<int64_t>(),
                 .num_worse = json["num_worse"].get<int64_t>()};
  if (json["value"].is_number()) best.value = json["value"].get<double>();
  return best;
}

void verify_checkpoint(const fs::path& checkpoint) {
  const Json json = read_state_json(checkpoint);
  for (const auto& [name, entry] : json["files"].items()) {
    if (fingerprint_of(checkpoint / name) == entry["fingerprint"].get<std::string>()) continue;
    throw DataError(
        fmt::format("the checkpoint is damaged: the contents of {} changed after it was written",
                    name),
        checkpoint.string(), kDamageFix);
  }
}

at::Tensor values_in(const weights::SafetensorsFile& file, const fs::path& path,
                     const std::string& name, at::IntArrayRef shape, at::ScalarType type) {
  const weights::SafetensorsEntry* entry = file.find(name);
  const char* dtype = type == at::kByte ? "U8" : "F32";
  const auto bytes = static_cast<size_t>(c10::multiply_integers(shape)) * c10::elementSize(type);
  if (entry == nullptr || entry->dtype != dtype || entry->bytes.size() != bytes) {
    throw DataError(fmt::format("the checkpoint lacks {} or has it in another size", name),
                    path.string(),
                    "it was written by a run with other settings, or it is damaged; use another "
                    "output.dir, or start over with --overwrite");
  }
  return at::from_blob(const_cast<std::byte*>(entry->bytes.data()), shape, type);
}

}  // namespace sftrun::train
