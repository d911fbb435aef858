#include "sftrun/train/identity.h"

#include <algorithm>
#include <vector>

#include "sftrun/config/setting_differences.h"
#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/parallel/agreement.h"
#include "sftrun/weights/fingerprint.h"

namespace sftrun::train {
namespace {

using Json = nlohmann::ordered_json;

std::string shown(const Json& json, const std::string& key) {
  return json.contains(key) ? json[key].dump() : "nothing";
}

Json object_at(const Json& json, const char* key) {
  const Json found = json.is_object() ? json.value(key, Json()) : Json();
  return found.is_object() ? found : Json::object();
}

/// Whether entry `i` of a list [[name, hash], …] has this entry's hash.
bool has_hash_of(const Json& list, size_t i, const Json& entry) {
  return list.is_array() && i < list.size() && list[i].is_array() && list[i].size() == 2 &&
         list[i][1] == entry.at(1);
}

/// The name of an entry [name, hash] of a checkpoint's list, which may be damaged.
std::string name_of(const Json& entry) {
  const bool has_name = entry.is_array() && !entry.empty() && entry[0].is_string();
  return has_name ? entry[0].get<std::string>() : entry.dump();
}

/// The files with different contents, regardless of their names; empty: no difference.
std::vector<std::string> other_weights(const Json& was, const Json& is) {
  std::vector<std::string> names;
  for (size_t i = 0; i < is.size(); ++i) {
    if (!has_hash_of(was, i, is[i])) names.push_back(is[i].at(0).get<std::string>());
  }
  if (names.empty() && was.size() > is.size()) names.push_back("fewer files");
  return names;
}

/// The first `most` entries and the number of further ones.
std::string shortened_list(std::vector<std::string> all, size_t most) {
  const size_t more = all.size() - std::min(most, all.size());
  all.resize(all.size() - more);
  return join(all, ", ") + (more > 0 ? fmt::format(" and {} more", more) : "");
}

void add_model_differences(const Json& saved, const Json& now,
                           std::vector<std::string>& differences) {
  constexpr size_t kMaxKeys = 5, kMaxFiles = 3;
  const Json was = object_at(saved, "model"), is = object_at(now, "model");
  const auto keys =
      config::key_differences(object_at(was, "configuration"), object_at(is, "configuration"));
  if (!keys.empty())
    differences.push_back("the model's configuration: " + shortened_list(keys, kMaxKeys));
  if (was.value("layout", Json()) != is.value("layout", Json()))
    differences.push_back("another base model: its tensors have other names, shapes or types");
  if (was.contains("weights") && is.contains("weights")) {
    if (const auto files = other_weights(was["weights"], is["weights"]); !files.empty())
      differences.push_back("the base model's weights have changed: " +
                            shortened_list(files, kMaxFiles));
  }
}

/// A few characters of a line, from shortly before where it differs.
std::string around(const std::string& line, size_t column) {
  constexpr size_t kBefore = 20, kShown = 60;
  const auto is_inside = [&](size_t at) {  // of a character
    return at < line.size() && is_continuation_byte(line[at]);
  };
  size_t begin = column - std::min(column, kBefore), end = std::min(line.size(), begin + kShown);
  while (is_inside(begin)) --begin;
  while (is_inside(end)) ++end;
  return fmt::format("{}`{}`{}", begin > 0 ? "…" : "", line.substr(begin, end - begin),
                     end < line.size() ? "…" : "");
}

/// Where two texts differ first, in words.
std::string first_difference(const std::string& was, const std::string& is) {
  const std::vector<std::string> old_lines = split(was, '\n'), new_lines = split(is, '\n');
  size_t line = 0;
  while (line < old_lines.size() && line < new_lines.size() && old_lines[line] == new_lines[line])
    ++line;
  if (line >= old_lines.size()) return fmt::format("it has more lines than the {} it had", line);
  if (line >= new_lines.size())
    return fmt::format("it has {}, and had {}", counted(line, "line"), old_lines.size());
  const std::string &before = old_lines[line], &after = new_lines[line];
  const auto [at, ignored] =
      std::mismatch(before.begin(), before.end(), after.begin(), after.end());
  const auto column = static_cast<size_t>(at - before.begin());
  return fmt::format("line {} was {}, is now {}", line + 1, around(before, column),
                     around(after, column));
}

std::string template_difference(const Json& saved, const Json& now) {
  const Json was = saved.value("chat_template_source", Json()),
             is = now.value("chat_template_source", Json());
  if (!was.is_string() || !is.is_string()) return "the chat template differs";
  if (was == is) return "the chat template's special tokens (bos_token, eos_token, …) differ";
  const std::string before = was.get<std::string>(), after = is.get<std::string>();
  if (before.empty()) return "there was no chat template, now there is one";
  if (after.empty()) return "there was a chat template, now there is none";
  return "the chat template differs: " + first_difference(before, after);
}

/// Which of the data sets, or streamed files, are others.
std::string data_difference(const Json& saved, const Json& now) {
  constexpr size_t kMaxNames = 3;
  const Json was = saved.value("data_parts", Json()), is = now.value("data_parts", Json());
  if (!was.is_array() || !is.is_array()) return "the training data differ";
  std::vector<std::string> names;
  for (size_t i = 0; i < is.size(); ++i) {
    if (!has_hash_of(was, i, is[i])) names.push_back(is[i].at(0).get<std::string>());
  }
  for (size_t i = is.size(); i < was.size(); ++i) names.push_back("without " + name_of(was[i]));
  if (names.empty()) return "the training data differ in weight or order";
  return "the training data differ: " + shortened_list(names, kMaxNames);
}

}  // namespace

ModelIdentity model_identity(const weights::Checkpoint& checkpoint, const data::TextModel& text) {
  const templates::RenderOptions& texts = text.render_defaults;
  return {.configuration = checkpoint.configuration(),
          .layout = weights::layout_fingerprint(checkpoint),
          .tokenizer = xxh3_128(text.tokenizer->to_json()),
          .chat_template = Fingerprint()
                               .add(text.chat_template ? text.chat_template->source() : "")
                               .add(texts.bos_token)
                               .add(texts.eos_token)
                               .add(texts.unk_token)
                               .add(texts.pad_token)
                               .hex(),
          .chat_template_source = text.chat_template ? text.chat_template->source() : ""};
}

Json identity_of(const config::RunConfig& config, const ModelIdentity& model,
                 const std::string& train_fingerprint, const std::string& val_fingerprint,
                 const NamedFingerprints& train_parts) {
  Json identity;
  identity["model"] = {{"configuration", model.configuration}, {"layout", model.layout}};
  identity["tokenizer"] = model.tokenizer;
  identity["chat_template"] = model.chat_template;
  identity["chat_template_source"] = model.chat_template_source;
  identity["data"] = train_fingerprint;
  Json& parts = identity["data_parts"] = Json::array();
  for (const auto& [name, fingerprint] : train_parts) parts.push_back({name, fingerprint});
  identity["validation"] = val_fingerprint;
  identity["backend"] = config.tuning.backend == config::TuningBackend::kFused ? "fused" : "bnb";
  identity["config"] = config::identity_settings(config);
  return identity;
}

void add_weights(Json& identity, const NamedFingerprints& files) {
  Json& weights = identity["model"]["weights"] = Json::array();
  for (const auto& [name, hash] : files) weights.push_back({name, hash});
}

namespace {
constexpr const char *kStart = "start", *kReference = "reference", *kTeacher = "teacher";
}

void add_start(Json& identity, const std::string& hash) {
  identity[kStart] = hash;
}

void add_reference(Json& identity, const std::string& fingerprint) {
  identity[kReference] = fingerprint;
}

void add_teacher(Json& identity, const std::string& hash) {
  identity[kTeacher] = hash;
}

namespace {
constexpr const char *kDeal = "deal", *kDealByCost = "cost 1";
}

void add_deal_by_cost(Json& identity) {
  identity[kDeal] = kDealByCost;
}

bool deals_by_cost(const Json& identity) {
  return identity.contains(kDeal);
}

namespace {

/// What a run and its checkpoint have in common no longer, and what a user can do about it.
struct Differences {
  std::vector<std::string> all;
  std::vector<std::string> restored;  ///< what has to be as it was, whatever is permitted
  std::vector<std::string> permitted,
      flags;                  ///< "data" and --allow-changed-data, which permits them
  bool only_template = true;  ///< of those that are permitted
  bool suits_adapter = true;  ///< whether an adapter of the checkpoint fits into the run

  void permit(const char* what, const std::string& flag) {
    permitted.push_back(std::string("the new ") + what);
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) flags.push_back(flag);
    only_template = only_template && permitted.back() == "the new chat template";
  }

  std::string way_to_resume() const {
    const std::string with_flags = join(flags, " and ");
    if (!restored.empty()) {
      return "to resume, " + join(restored, ", and ") +
             (flags.empty() ? "" : ", and add " + with_flags);
    }
    const std::string by_flags =
        fmt::format("{} {} with {}", with_flags, flags.size() == 1 ? "resumes" : "resume",
                    join(permitted, " and "));
    if (!only_template) return by_flags;
    return "to resume, use the chat template that the run began with (model.chat_template, or the "
           "model's own); " +
           by_flags;
  }
};

void compare_settings(const Json& was, const Json& is, bool may_change_length,
                      Differences& differences) {
  std::vector<std::string> settings = config::setting_differences(was, is, may_change_length);
  if (settings.empty()) return;
  differences.restored.push_back(config::restore_settings(settings));
  for (std::string& one : settings) {
    if (one.starts_with("tuning.") || one.starts_with("the order of tuning."))
      differences.suits_adapter = false;
    differences.all.push_back(std::move(one));
  }
}

}  // namespace

void require_same_identity(const Json& saved, const Json& now, const std::string& checkpoint,
                           const ResumePermissions& permissions) {
  Differences differences;
  const auto differs = [&](const char* key) {
    return saved.value(key, Json()) != now.value(key, Json());
  };
  add_model_differences(saved, now, differences.all);
  if (!differences.all.empty()) {
    differences.restored.emplace_back("give the run the model files that it began with");
    differences.suits_adapter = object_at(saved, "model").value("layout", Json()) ==
                                object_at(now, "model").value("layout", Json());
  }
  if (differs(kStart)) {
    differences.all.push_back(
        fmt::format("the adapter of tuning.lora.init_from, which is the reference model, differs "
                    "(its hash was {}, is now {})",
                    shown(saved, kStart), shown(now, kStart)));
    differences.restored.emplace_back(
        "give tuning.lora.init_from the adapter that the run began with");
  }
  if (saved.contains(kReference) && now.contains(kReference) && differs(kReference)) {
    differences.all.push_back(
        fmt::format("the model of train.reference has changed (its hash was {}, is now {})",
                    shown(saved, kReference), shown(now, kReference)));
    differences.restored.emplace_back("give train.reference the model that the run began with");
  }
  if (saved.contains(kTeacher) && now.contains(kTeacher) && differs(kTeacher)) {
    differences.all.push_back(fmt::format(
        "train.teacher names another teacher, or scores that were written with other settings "
        "(their hash was {}, is now {})",
        shown(saved, kTeacher), shown(now, kTeacher)));
    differences.restored.emplace_back(
        "give train.teacher the model or the scores that the run began with");
  }
  if (differs("tokenizer")) {
    differences.all.push_back(fmt::format("the tokenizer differs (its hash was {}, is now {})",
                                          shown(saved, "tokenizer"), shown(now, "tokenizer")));
    differences.restored.emplace_back("use the tokenizer files that the run began with");
  }
  if (differs("chat_template") && !permissions.changed_data) {
    differences.all.push_back(template_difference(saved, now));
    differences.permit("chat template", "--allow-changed-data");
  }
  if (differs("data") && !permissions.changed_data) {
    differences.all.push_back(data_difference(saved, now));
    differences.permit("data", "--allow-changed-data");
  }
  if (differs("backend") && !permissions.backend_change) {
    differences.all.push_back(fmt::format("tuning.backend was {}, is now {}",
                                          shown(saved, "backend"), shown(now, "backend")));
    differences.permit("backend", "--allow-backend-change");
  }
  if (saved.contains(kDeal) && now.contains(kDeal) && differs(kDeal)) {
    differences.all.push_back(fmt::format(
        "the run deals its sequences to ranks as another version of sftrun ({}, here {})",
        shown(saved, kDeal), shown(now, kDeal)));
    differences.restored.emplace_back("use the version that the run began with");
  }
  const Json was = object_at(saved, "config");
  compare_settings(was, object_at(now, "config"), permissions.changed_length, differences);
  if (differences.all.empty()) return;
  const Json mode = was.value("tuning.mode", Json());
  const bool is_adapter = mode == "lora" || mode == "qlora";
  std::string fix = differences.way_to_resume() + "; " + config::kStartNewRun;
  if (!is_adapter || differences.suits_adapter) {
    fix += std::string("; to build on these weights choose another output.dir and set ") +
           (is_adapter ? "tuning.lora.init_from to the directory `adapter` of the finished run"
                       : "model.name to the directory `model` of the finished run");
  }
  throw ConfigError("the run differs from the checkpoint: " + join(differences.all, "; "),
                    checkpoint, fix);
}

namespace {

/// "train.learning_rate is 0.001, on rank 0 0.0002" of each setting that differs.
std::vector<std::string> other_settings(const Json& own, const Json& first) {
  std::vector<std::string> differences;
  for (const auto& [section, settings] : own.items()) {
    for (const auto& [name, value] : settings.items()) {
      const Json of_first = first.value(section, Json::object()).value(name, Json());
      if (of_first != value)
        differences.push_back(fmt::format("{}.{} is {}, on rank 0 {}", section, name,
                                          excerpt(value.dump()), excerpt(of_first.dump())));
    }
  }
  return differences;
}

/// How this rank's identity and configuration differ from those of rank 0.
std::string describe_other_rank(const Json& own, const Json& first) {
  constexpr size_t kMaxSettings = 3;
  const Json is = object_at(own, "identity"), was = object_at(first, "identity");
  std::vector<std::string> differences;
  for (const auto& [key, words] : {std::pair("model", "the model"),
                                   {kStart, "the adapter of tuning.lora.init_from"},
                                   {"tokenizer", "the tokenizer"},
                                   {"chat_template", "the chat template"},
                                   {"data", "the data set"},
                                   {"validation", "the validation data"}}) {
    if (is.value(key, Json()) != was.value(key, Json()))
      differences.push_back(std::string(words) + " differs from that of rank 0");
  }
  const auto settings = other_settings(object_at(own, "config"), object_at(first, "config"));
  if (!settings.empty()) differences.push_back(shortened_list(settings, kMaxSettings));
  return differences.empty() ? "model, data set or configuration differ from those of rank 0"
                             : join(differences, "; ");
}

}  // namespace

void require_same_on_all_ranks(const Json& identity, const config::RunConfig& config,
                               parallel::Communicator& comm, bool is_one_machine) {
  const Json own = {{"identity", identity}, {"config", config::to_json(config)}};
  const auto differs = parallel::find_disagreement(
      comm, "model-data-and-configuration", own.dump(),
      [&](const std::string& first) { return describe_other_rank(own, Json::parse(first)); });
  if (!differs) return;
  throw ConfigError(
      fmt::format("rank {} has another run than rank 0: {}", differs->rank, differs->what), {},
      is_one_machine
          ? "files changed between the ranks' reads of them, or ranks have other flags: run the "
            "command again when nothing writes to the files"
          : "give every machine the same files and flags; if they have them, files changed while "
            "the run started: run the command again");
}

}  // namespace sftrun::train
