#include "model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/short_quotes.h"
#include "sftrun/core/strings.h"
#include "sftrun/launch/stop_signals.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/weights/gguf.h"

namespace sftrun::app {
namespace {

constexpr const char* kWhatToGive =
    "give a directory in Hugging Face layout, a .gguf file, or a name on the hub: owner/name";

/// Only names of this form are looked up on the hub.
std::optional<hub::RepoName> name_on_hub(const ModelAsked& asked) {
  std::optional<hub::RepoName> name = hub::parse_model_name(asked.name);
  if (name) name = hub::with_revision(*name, asked.revision);
  return name;
}

/// With the revision apart, as in PEFT and transformers.
ModelSource source_of(hub::RepoName name, const std::filesystem::path& path) {
  const std::string revision = std::exchange(name.revision, {});
  return {path, name.text(), revision};
}

/// @param known bytes from the beginning; the rest of the file is a hole
bool has_whole_header(const std::filesystem::path& file, uint64_t known) {
  if (file.extension() == ".safetensors") {
    uint64_t length = 0;
    std::ifstream in(file, std::ios::binary);
    in.read(reinterpret_cast<char*>(&length), sizeof length);
    return in && length <= known - std::min<uint64_t>(known, sizeof length);
  }
  try {
    return weights::GgufFile(file).data_begin() <= known;
  } catch (const DataError&) {  // a part of the header is in the hole
    return false;
  }
}

ModelSource headers_on_hub(const hub::RepoName& name, const ModelAsked& asked) {
  const auto folder = std::make_shared<const TemporaryFolder>("headers");
  const hub::Snapshot snapshot = until_stopped([&](const std::function<bool()>& should_stop) {
    return hub::get_model_headers(name, folder->path(), has_whole_header,
                                  hub::settings_from_environment(),
                                  {.quiet = asked.quiet, .should_stop = should_stop});
  });
  ModelSource source = source_of(snapshot.name, snapshot.path);
  source.folder = folder;
  return source;
}

ModelSource find_on_hub(const hub::RepoName& name, const ModelAsked& asked) {
  if (asked.headers_only) return headers_on_hub(name, asked);
  const hub::Snapshot snapshot = until_stopped([&](const std::function<bool()>& should_stop) {
    return hub::get_model(name, asked.parts, hub::settings_from_environment(),
                          {.quiet = asked.quiet, .should_stop = should_stop});
  });
  return source_of(snapshot.name, snapshot.path);
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 12;
  const size_t shown = std::min(names.size(), kShown);
  return join(std::span(names).first(shown), ", ") +
         (names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "");
}

/// The only .gguf file of a directory; the directory itself if it has none.
std::filesystem::path gguf_in(const std::filesystem::path& directory, const ModelAsked& asked) {
  std::vector<std::string> names;
  std::error_code code;
  std::filesystem::directory_iterator entry(directory, code);
  for (; !code && entry != std::filesystem::directory_iterator(); entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    const bool is_model = ascii_lower(name).ends_with(".gguf") && !name.starts_with("mmproj");
    if (is_model && has_optional_file(entry->path()) && is_plain_file(entry->path()))
      names.push_back(name);
  }
  if (names.empty()) return directory;
  std::sort(names.begin(), names.end());
  const std::string first = (directory / names.front()).string();
  const PythonRegex split(R"(-\d{5}-of-\d{5}\.gguf$)", PythonRegex::Matches::kSearch);
  if (std::all_of(names.begin(), names.end(),
                  [&](const std::string& name) { return split.matches(name); })) {
    throw DataError(
        fmt::format(
            "{} holds a model that is split into several GGUF files, which is not supported: {}",
            asked.name, listed(names)),
        asked.where, "join them: llama-gguf-split --merge FIRST_FILE model.gguf");
  }
  if (names.size() == 1) return first;
  throw DataError(
      fmt::format("{} holds {} .gguf files: {}", asked.name, names.size(), listed(names)),
      asked.where, fmt::format("name one of them: {}", first));
}

/// What to give instead of an adapter, with flags and settings of the command.
std::string fix_for_adapter(const ModelAsked& asked, const std::filesystem::path& adapter) {
  if (asked.adapter_way == AdapterWay::kFlag)
    return "name the adapter: --adapter " + shell_word(adapter.string());
  if (asked.parts == hub::ModelParts::kText && asked.adapter_way == AdapterWay::kNone) {
    return leads_to_file(adapter / "tokenizer.json")
               ? "name the adapter's directory, which has a tokenizer: " + adapter.string()
               : "name the adapter's base model, which has the tokenizer";
  }
  const std::string merge =
      fmt::format("merge it, and name the result: sftrun merge --adapter {} --output {}",
                  shell_word(adapter.string()), shell_word(adapter.string() + "-merged"));
  return asked.adapter_way == AdapterWay::kNone
             ? merge
             : fmt::format(
                   "name its base model, and train the adapter further with "
                   "tuning.lora.init_from={}; or {}",
                   shell_word(adapter.string()), merge);
}

/// A run that has begun, and was killed before its first checkpoint or has not reached it.
bool has_saved_nothing(const std::filesystem::path& run) {
  if (!leads_to_file(run / "run.json") && !leads_to_file(run / "metrics.jsonl")) return false;
  const std::vector<std::filesystem::path> checkpoints = readable_entries_of(run / "checkpoints");
  return !leads_to_file(run / "adapter") && !leads_to_file(run / "model") &&
         std::none_of(checkpoints.begin(), checkpoints.end(), [](const auto& entry) {
           return entry.filename().string().starts_with("step-");
         });
}

}  // namespace

void require_saved_run(const ModelAsked& asked) {
  if (!has_saved_nothing(asked.name)) return;
  throw DataError(
      fmt::format("the run {} has no checkpoint yet, and no result", asked.name), asked.where,
      "while it runs, wait for its first checkpoint; else repeat its `sftrun train` command, with "
      "train.save_every=1m to have checkpoints sooner");
}

namespace {

/// The path to open for a directory: `runs/first/model` for the run directory `runs/first`, or the
/// only .gguf file.
std::filesystem::path model_at(const ModelAsked& asked) {
  const std::filesystem::path path = asked.name;
  const auto holds = [&](const char* file) { return has_optional_file(path / file); };
  if (!is_folder(path) || holds("config.json")) return path;
  if (holds("model/config.json")) return path / "model";
  if (holds("adapter/adapter_config.json")) {
    throw DataError(fmt::format("{} is a run directory with an adapter and no model", asked.name),
                    asked.where, fix_for_adapter(asked, path / "adapter"));
  }
  require_saved_run(asked);
  // A command that needs only a tokenizer reads that of an adapter's directory.
  const bool needs_weights =
      asked.parts != hub::ModelParts::kText || asked.adapter_way != AdapterWay::kNone;
  if (holds("adapter_config.json") && needs_weights) {
    throw DataError(fmt::format("{} is an adapter, not a model", asked.name), asked.where,
                    fix_for_adapter(asked, path));
  }
  return gguf_in(path, asked);
}

/// Both forms of weights: an older save beside a newer one.
void warn_of_unread_shards(const std::filesystem::path& model) {
  constexpr const char* kSingle = "model.safetensors";
  constexpr const char* kIndex = "model.safetensors.index.json";
  if (!has_optional_file(model / kSingle) || !has_optional_file(model / kIndex)) return;
  log::warn(
      "{} has {} and {}: the single file is read, as in transformers, and the files that the index "
      "names are not; remove the one that is out of date",
      model.string(), kSingle, kIndex);
}

/// @param may_be_on_hub the name has the form of names on the hub
[[noreturn]] void throw_no_model(const ModelAsked& asked, bool may_be_on_hub) {
  const std::string near = near_path(asked.name, asked.kind);
  std::string fix =
      near.empty() ? kWhatToGive : fmt::format("did you mean {}? Otherwise {}", near, kWhatToGive);
  if (asked.where.ends_with("adapter_config.json") && near.empty())
    fix = "if the adapter's base model was moved, name its new path: --model PATH";
  if (may_be_on_hub) {
    fix = fix_for_path(asked.name, fmt::format("for a model on the hub write hf://{}", asked.name),
                       asked.kind);
  }
  throw DataError(fmt::format("no such model: {}", shown_path(asked.name)), asked.where,
                  std::move(fix));
}

}  // namespace

bool is_path_here(const std::string& text, const hub::RepoName& name) {
  std::error_code ignored;
  return !hub::begins_as_hub_name(text) &&
         std::filesystem::is_directory(name.id.substr(0, name.id.find('/')), ignored) &&
         !hub::is_in_cache(name, hub::settings_from_environment());
}

void rethrow_as_unknown_path(const Error& error, const std::string& path, const std::string& place,
                             PathKind kind) {
  const std::string where =
      error.where().empty() ? place : fmt::format("{}; {}", place, error.where());
  if (hub::begins_as_hub_name(path)) throw Error(error.code(), error.message(), where, error.fix());
  throw Error(error.code(),
              fmt::format("no file or directory {}; {}", shown_path(path), error.message()), where,
              fix_for_path(path, "or, if it is a name on the hub: " + error.fix(), kind));
}

std::string fix_for_path(const std::string& path, const std::string& other, PathKind kind) {
  const std::string near = near_path(path, kind);
  return near.empty() ? fmt::format("check the path; {}", other)
                      : fmt::format("did you mean {}? {}", near, other);
}

ModelSource find_model(const ModelAsked& asked) {
  if (leads_to_file(asked.name)) {
    if (!asked.revision.empty() && !asked.quiet)
      log::warn("model.revision has no effect: {} is a local file or directory", asked.name);
    const std::filesystem::path path = model_at(asked);
    if (!asked.quiet) warn_of_unread_shards(path);
    return {path, path.string(), ""};
  }
  bool is_path = false;
  try {
    const auto name = name_on_hub(asked);
    is_path = name && is_path_here(asked.name, *name);
    if (name && !is_path) return find_on_hub(*name, asked);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInterrupted || error.code() == ExitCode::kStopped) throw;
    rethrow_as_unknown_path(error, asked.name, asked.where, asked.kind);
  }
  throw_no_model(asked, is_path);
}

namespace {

/// The adapters in the folders of `folder`, sorted: of a folder of runs those of its runs.
std::vector<std::string> adapters_below(const std::filesystem::path& folder) {
  std::vector<std::string> found;
  for (const std::filesystem::path& entry : readable_entries_of(folder)) {
    if (!is_folder(entry)) continue;
    const std::filesystem::path adapter = observe::adapter_at(entry);
    if (leads_to_file(adapter / "adapter_config.json")) found.push_back(adapter.string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

[[noreturn]] void refuse_folder(const ModelAsked& asked) {
  constexpr size_t kShown = 5;
  std::vector<std::string> below = adapters_below(asked.name);
  const size_t num_more = below.size() > kShown ? below.size() - kShown : 0;
  below.resize(below.size() - num_more);
  throw DataError(
      fmt::format("{} is not an adapter: it has no adapter_config.json", asked.name), asked.where,
      below.empty()
          ? "name a directory with adapter_config.json and the adapter's weights: adapter/ of a "
            "run directory, or what PEFT's save_pretrained wrote"
          : fmt::format("name one of those in it: {}{}", join(below, ", "),
                        num_more > 0 ? fmt::format(" and {} more", num_more) : ""));
}

/// @param adapter where the adapter would be: it has no adapter_config.json
[[noreturn]] void refuse_as_adapter(const ModelAsked& asked, const std::filesystem::path& adapter) {
  const std::filesystem::path model = adapter / "model";
  require_saved_run(asked);
  if (is_plain_file(adapter)) {
    throw DataError(fmt::format("{} is a file, not an adapter", asked.name), asked.where,
                    "name the directory that has adapter_config.json");
  }
  if (has_optional_file(model / "config.json")) {
    throw DataError(fmt::format("{} is a run directory with a model and no adapter", asked.name),
                    asked.where,
                    fmt::format("name the model: {}{}", asked.names_model, model.string()));
  }
  if (has_optional_file(adapter / "config.json")) {
    throw DataError(fmt::format("{} is a model, not an adapter", asked.name), asked.where,
                    fmt::format("name it with {}{}", asked.names_model, asked.name));
  }
  refuse_folder(asked);
}

}  // namespace

std::filesystem::path find_adapter(const ModelAsked& asked) {
  if (leads_to_file(asked.name)) {
    const std::filesystem::path adapter = observe::adapter_at(asked.name);
    if (!has_optional_file(adapter / "adapter_config.json")) refuse_as_adapter(asked, adapter);
    if (const std::string notice = observe::notice_of_result(asked.name, adapter); !notice.empty())
      log::warn("{}", notice);
    return adapter;
  }
  const auto name = hub::parse_model_name(asked.name);
  if (!name || is_path_here(asked.name, *name)) return asked.name;
  ModelAsked adapter = asked;
  adapter.kind = PathKind::kAdapter;
  return find_model(adapter).path;
}

namespace {

/// Whether a command that reads this kind would open the path, as far as names of files tell.
bool is_of_kind(const std::filesystem::path& path, PathKind kind) {
  const auto holds = [&](const char* file) { return leads_to_file(path / file); };
  if (kind == PathKind::kData) return true;
  if (!is_folder(path))
    return kind == PathKind::kModel && ascii_lower(path.extension().string()) == ".gguf";
  if (kind == PathKind::kAdapter)
    return leads_to_file(observe::adapter_at(path) / "adapter_config.json");
  const std::vector<std::filesystem::path> entries = readable_entries_of(path);
  return holds("config.json") || holds("model/config.json") ||
         std::any_of(entries.begin(), entries.end(), [](const std::filesystem::path& entry) {
           return ascii_lower(entry.extension().string()) == ".gguf";
         });
}

}  // namespace

std::string near_path(const std::filesystem::path& path, PathKind kind) {
  const std::filesystem::path parent = path.parent_path();
  std::vector<std::string> names;
  for (const std::filesystem::path& entry : readable_entries_of(parent.empty() ? "." : parent))
    if (is_of_kind(entry, kind)) names.push_back(entry.filename().string());
  const std::string near = nearest(path.filename().string(), names);
  return near.empty() ? "" : (parent / near).string();
}

ModelSource found_model(const ModelAsked& asked, const std::filesystem::path& path) {
  const auto name = name_on_hub(asked);
  return name ? source_of(*name, path) : ModelSource{path, asked.name, asked.revision};
}

hub::Snapshot until_stopped(
    const std::function<hub::Snapshot(const std::function<bool()>& should_stop)>& download) {
  const launch::StopSignals stop;
  try {
    return download([&stop] { return stop.requested(); });
  } catch (const Error& error) {
    if (!stop.requested()) throw;
    throw Error(static_cast<ExitCode>(stop.exit_code()), error.message(), error.where(),
                error.fix());
  }
}

}  // namespace sftrun::app
