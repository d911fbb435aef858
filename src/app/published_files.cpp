#include "published_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "published_text.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/hub/settings.h"
#include "sftrun/observe/run_report.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunArgument = "RUN on the command line";
constexpr const char* kCard = "README.md";
/// Larger files are weights and vocabularies, which hold no settings.
constexpr uint64_t kMaxSettingsBytes = uint64_t{4} << 20;

/// Files of models and adapters that other programs load. Nothing else is published: an unknown file
/// may hold data or secrets.
bool is_published_name(const std::string& name, const std::string& what) {
  static const std::set<std::string> kNames = {"README.md",
                                               "LICENSE",
                                               "LICENSE.md",
                                               "LICENSE.txt",
                                               "NOTICE",
                                               "adapter_config.json",
                                               "config.json",
                                               "generation_config.json",
                                               "tokenizer.json",
                                               "tokenizer_config.json",
                                               "special_tokens_map.json",
                                               "added_tokens.json",
                                               "vocab.json",
                                               "vocab.txt",
                                               "merges.txt",
                                               "tekken.json",
                                               "tokenizer.model",
                                               "spiece.model",
                                               "sentencepiece.bpe.model",
                                               "chat_template.jinja",
                                               "chat_template.json",
                                               "preprocessor_config.json",
                                               "processor_config.json",
                                               "video_preprocessor_config.json",
                                               "modules.json",
                                               "sentence_bert_config.json",
                                               "config_sentence_transformers.json",
                                               "sftrun_base.json",
                                               "sftrun_chat.json",
                                               "sftrun_images.json",
                                               "labels.json",
                                               "projectors.json"};
  const auto is_shard_of = [&](std::string_view stem) {
    return name.starts_with(stem) &&
           (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
  };
  if (what == "gguf")
    return name == kCard || name == "Modelfile" || name.starts_with("LICENSE") ||
           name.ends_with(".gguf");
  if (is_shard_of("adapter_model")) return what == "adapter";
  return kNames.contains(name) || name.ends_with(".tiktoken") ||
         (what != "adapter" && is_shard_of("model"));
}

/// "1_Pooling", of sentence-transformers: it holds a config.json.
bool is_module_folder(const std::string& name) {
  return name.size() > 2 && name[0] >= '0' && name[0] <= '9' && name[1] == '_';
}

bool holds(const fs::path& folder, const char* name) {
  return leads_to_file(folder / name);
}

bool holds_ending(const fs::path& folder, const char* ending) {
  const auto entries = readable_entries_of(folder);
  return std::ranges::any_of(
      entries, [&](const fs::path& entry) { return entry.native().ends_with(ending); });
}

bool is_adapter_folder(const fs::path& folder) {
  return holds(folder, "adapter_config.json");
}
bool is_model_folder(const fs::path& folder) {
  return holds(folder, "config.json") && holds_ending(folder, ".safetensors");
}

[[noreturn]] void refuse_as_absent(const PublicationAsked& asked, const std::string& what) {
  const std::string run = shell_word(asked.run.string());
  if (what != "adapter") {
    const std::string output = (asked.run / "merged").string() + (what == "gguf" ? ".gguf" : "");
    const std::string merge =
        fmt::format("`sftrun merge --adapter {} --output {}`", run, shell_word(output));
    throw DataError(
        fmt::format("{} has no {} to upload", asked.run.string(),
                    what == "gguf" ? ".gguf file" : "merged model"),
        asked.from.empty() ? kRunArgument : "--from on the command line",
        fmt::format("write one with {}, then upload it with --from {}", merge, shell_word(output)));
  }
  const bool is_run = holds(asked.run, "run.json") || is_folder(asked.run / "checkpoints");
  throw DataError(
      is_run ? fmt::format("the run {} has no result yet", asked.run.string())
             : fmt::format("{} holds no adapter and no model", asked.run.string()),
      kRunArgument,
      is_run ? "let it finish; to publish a checkpoint, name its folder in checkpoints/"
             : "name a run directory, a folder with adapter_config.json, or what `sftrun merge` "
               "wrote");
}

/// What there is to publish without --what.
std::string result_of(const PublicationAsked& asked) {
  const fs::path& place = asked.from.empty() ? asked.run : asked.from;
  if (place.extension() == ".gguf") return "gguf";
  if (is_adapter_folder(place) || (asked.from.empty() && is_adapter_folder(place / "adapter")))
    return "adapter";
  if (asked.from.empty() && is_model_folder(place / "model")) return "model";
  if (is_model_folder(place)) return "merged";
  if (holds_ending(place, ".gguf")) return "gguf";
  refuse_as_absent(asked, "adapter");
}

fs::path source_of(const PublicationAsked& asked, const std::string& what) {
  const fs::path run = asked.run;
  std::vector<fs::path> places = {run};
  if (!asked.from.empty())
    places = {asked.from};
  else if (what == "adapter")
    places = {run / "adapter", run};
  else if (what == "model")
    places = {run / "model"};
  else
    places = {run / "merged.gguf", run / "merged", run};
  const auto found = std::ranges::find_if(places, [&](const fs::path& place) {
    if (what == "adapter") return is_adapter_folder(place);
    if (what != "gguf") return is_model_folder(place) && !is_adapter_folder(place);
    return is_folder(place) ? holds_ending(place, ".gguf")
                            : place.extension() == ".gguf" && is_plain_file(place);
  });
  if (found != places.end()) return *found;
  refuse_as_absent(asked, what);
}

/// @param within the file may not be elsewhere: a link could publish any file
void require_inside(const fs::path& file, const fs::path& within) {
  std::error_code code;
  const fs::path target = fs::canonical(file, code), folder = fs::canonical(within, code);
  const auto [end, unused] =
      std::mismatch(folder.begin(), folder.end(), target.begin(), target.end());
  if (!code && end == folder.end()) return;
  throw DataError(fmt::format("{} is a link that leads out of {}", file.string(), within.string()),
                  file.string(), "put a copy of the file in its place");
}

class Collector {
 public:
  Collector(const PublicationAsked& asked, Publication& publication)
      : publication_(publication),
        folder_(is_folder(publication.source) ? publication.source
                                              : absolute_path(publication.source).parent_path()),
        within_(asked.from.empty() && is_folder(asked.run) ? asked.run : folder_),
        paths_(local_paths_of(folder_, asked.base)),
        token_(hub::settings_from_environment().token.reveal()) {
    hide_place(within_);
    if (folder_ != within_) hide_place(folder_);
  }

  void collect() {
    if (!is_folder(publication_.source)) {
      add(publication_.source, publication_.source.filename().string());
    } else {
      std::vector<fs::path> entries = entries_of(folder_);
      std::sort(entries.begin(), entries.end());
      for (const fs::path& entry : entries) consider(entry);
    }
    warn_of_base();
    for (const Replacement& text : paths_.texts)
      if (replaced_.contains(text.from))
        publication_.warnings.push_back(
            fmt::format("the uploaded files say `{}` in place of the path {}", text.to, text.from));
  }

  const LocalPaths& paths() const { return paths_; }

 private:
  /// The path of a folder that is not near the root, where it could be part of any text.
  void hide_place(const fs::path& place) {
    constexpr std::ptrdiff_t kMinSlashes = 2;
    const std::string path = absolute_path(place).lexically_normal().string();
    if (std::count(path.begin(), path.end(), '/') >= kMinSlashes)
      paths_.texts.push_back({path, "path/to/" + publication_.name});
  }

  void consider(const fs::path& entry) {
    const std::string name = entry.filename().string();
    if (is_folder(entry) && publication_.what != "gguf" && is_module_folder(name)) {
      require_inside(entry, within_);
      if (is_plain_file(entry / "config.json"))
        return add(entry / "config.json", name + "/config.json");
    }
    if (!is_folder(entry) && is_published_name(name, publication_.what)) return add(entry, name);
    publication_.left_out.push_back(is_folder(entry) ? name + "/" : name);
  }

  void add(const fs::path& file, const std::string& path) {
    require_inside(file, within_);
    if (!is_plain_file(file))
      throw DataError(fmt::format("{} is not a regular file", file.string()), file.string(),
                      "remove it, or put the file in its place");
    hub::LocalFile local{.path = path, .source = file};
    const bool is_binary = path.ends_with(".safetensors") || path.ends_with(".gguf");
    if (!is_binary && local.size() <= kMaxSettingsBytes) clean(local);
    publication_.files.push_back(std::move(local));
  }

  void clean(hub::LocalFile& file) {
    const std::string text = read_text_file(file.source);
    if (const std::string secret = secret_in(text, token_); !secret.empty())
      throw DataError(fmt::format("{} holds {}, and would be published", file.path, secret),
                      file.source.string(),
                      "remove it from the file, and revoke it if the file was shared before");
    const std::string name = fs::path(file.path).filename().string();
    std::string published = published_text(name, text, paths_);
    for (const Replacement& replacement : paths_.texts)
      if (text.find(replacement.from) != std::string::npos) replaced_.insert(replacement.from);
    const bool is_vocabulary = name.starts_with("vocab") || name.starts_with("merges");
    if (const std::string path = is_vocabulary ? "" : local_path_in(published); !path.empty())
      publication_.warnings.push_back(
          fmt::format("{} names a path of this machine: {}", file.path, excerpt(path)));
    if (published != text) file.content = std::move(published);
  }

  void warn_of_base() {
    if (publication_.what != "adapter" || paths_.known || paths_.model.empty()) return;
    publication_.warnings.push_back(fmt::format(
        "the base model {} is no name on the hub: others cannot load the adapter by it; name the "
        "model that it is with --base owner/name",
        paths_.model));
  }

  Publication& publication_;
  fs::path folder_, within_;
  LocalPaths paths_;
  std::string token_;
  std::set<std::string> replaced_;
};

/// "my run" becomes my-run: what the hub allows in a repository's name.
std::string repo_part(const std::string& text) {
  constexpr size_t kMaxName = 96;
  std::string name;
  for (const char c : text.substr(0, kMaxName)) {
    const bool is_allowed = (std::isalnum(static_cast<unsigned char>(c)) != 0 && (c & 0x80) == 0) ||
                            c == '_' || c == '.' || c == '-';
    const char next = is_allowed ? c : '-';
    const bool repeats = !name.empty() && (next == '-' || next == '.') && name.back() == next;
    if (!repeats) name += next;
  }
  while (!name.empty() && (name.back() == '-' || name.back() == '.')) name.pop_back();
  name.erase(0, std::min(name.find_first_not_of("-."), name.size()));
  return name.empty() ? "model" : name;
}

std::string name_of_run(const PublicationAsked& asked) {
  const fs::path named = absolute_path(asked.run).lexically_normal();
  const fs::path path = named.has_filename() ? named : named.parent_path();
  if (path.extension() == ".gguf") return repo_part(path.stem().string());
  fs::path run = is_adapter_folder(path) ? observe::run_directory_of(path) : path;
  if (!run.empty() && !run.has_filename()) run = run.parent_path();
  return repo_part((run.empty() ? path : run).filename().string());
}

/// A model card for what `sftrun merge` wrote, which has none.
std::string minimal_card(const Publication& publication, const LocalPaths& paths) {
  std::string text = "---\n";
  if (paths.known) text += fmt::format("base_model: \"{}\"\n", paths.known->name);
  if (publication.what == "merged") text += "library_name: transformers\n";
  text += fmt::format("tags:\n- sftrun\n{}---\n\n# {}\n\n",
                      publication.what == "gguf" ? "- gguf\n" : "", publication.name);
  return text + fmt::format("Fine-tuned with sftrun{}; the adapter is merged into the model.\n",
                            paths.known ? " from " + paths.known->name : "");
}

/// The card's metadata names the base, if it is known only now.
void put_base_into_card(Publication& publication, const LocalPaths& paths) {
  for (hub::LocalFile& file : publication.files) {
    if (file.path != kCard || !paths.known) continue;
    std::string text = file.content ? *file.content : read_text_file(file.source);
    constexpr std::string_view kBegin = "---\n";
    if (!text.starts_with(kBegin) || text.find("\nbase_model:") != std::string::npos) return;
    text.insert(kBegin.size(),
                fmt::format("base_model: \"{}\"\nbase_model_relation: {}\n", paths.known->name,
                            publication.what == "adapter" ? "adapter" : "finetune"));
    file.content = std::move(text);
  }
}

}  // namespace

Publication find_publication(const PublicationAsked& asked) {
  if (!leads_to_file(asked.run))
    throw DataError(fmt::format("{} does not exist", asked.run.string()), kRunArgument,
                    "name a run directory, an adapter, or what `sftrun merge` wrote");
  const std::string what = asked.what == "auto" ? result_of(asked) : asked.what;
  Publication publication{
      .what = what, .name = name_of_run(asked), .source = source_of(asked, what)};
  if (what == "adapter" && asked.from.empty()) {
    const std::string notice = observe::notice_of_result(asked.run, publication.source);
    if (!notice.empty()) publication.warnings.push_back(notice);
  }
  Collector collector(asked, publication);
  collector.collect();
  const LocalPaths& paths = collector.paths();
  const bool has_card = std::ranges::any_of(
      publication.files, [](const hub::LocalFile& file) { return file.path == kCard; });
  if (has_card)
    put_base_into_card(publication, paths);
  else if (what == "merged" || what == "gguf")
    publication.files.push_back(
        {.path = kCard, .content = minimal_card(publication, paths), .only_if_new = true});
  return publication;
}

}  // namespace sftrun::app
