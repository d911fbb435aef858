#include "known_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "sftrun/config/foreign_keys.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

constexpr std::string_view kKeepsNoLogits =
    "evaluation keeps no logits, only sums, so there is nothing to bound or to collect";

constexpr auto kLaterKeys = std::to_array<UnsupportedKey>({
    {"train.eval_accumulation_steps", true, "", kKeepsNoLogits},
    {"train.eval_do_concat_batches", true, "", kKeepsNoLogits},
    {"train.batch_eval_metrics", true, "", kKeepsNoLogits},
    {"train.eval_use_gather_object", true, "", kKeepsNoLogits},
    {"train.early_stopping", false, "",
     "set train.early_stopping_patience to a number of evaluations without an improvement"},
});

std::string leaf_of(const std::string& key) {
  return key.substr(key.rfind('.') + 1);
}
std::string section_of(const std::string& key) {
  const size_t dot = key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

/// The sections of the file's top level.
std::vector<std::string> top_sections(const Binding& binding) {
  std::vector<std::string> names;
  for (const Section& section : binding.sections) {
    if (section.name.find('.') == std::string::npos) names.push_back(section.name);
  }
  return names;
}

/// Full names of the fields and sections of `section`; of all sections if it is empty.
std::vector<std::string> names_in(const Binding& binding, const std::string& section) {
  std::vector<std::string> names;
  for (const Field& field : binding.fields) {
    if (section.empty() || field.section() == section) names.push_back(field.key);
  }
  for (const Section& candidate : binding.sections) {
    if (section.empty() || section_of(candidate.name) == section) names.push_back(candidate.name);
  }
  return names;
}

std::string same_leaf(const std::string& leaf, const std::vector<std::string>& names) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const std::string& name) { return leaf_of(name) == leaf; });
  return found == names.end() ? "" : *found;
}

/// The one of `names` whose last part is nearest to `leaf`.
std::string nearest_by_leaf(const std::string& leaf, const std::vector<std::string>& names) {
  constexpr size_t kShort = 3;  // any two shorter words are similar
  std::vector<std::string> leaves;
  for (const std::string& name : names) {
    if (leaf.size() >= kShort || leaf_of(name).starts_with(leaf.substr(0, 1)))
      leaves.push_back(leaf_of(name));
  }
  const std::string near = nearest(leaf, leaves);
  if (near.empty()) return {};
  return same_leaf(near, names);
}

/// A key of another trainer that is more similar to `leaf` than any key here; nullptr: none.
const ForeignKey* nearest_foreign(const std::string& leaf, const Binding& binding) {
  constexpr size_t kShort = 4;  // any two shorter words are similar
  if (leaf.size() < kShort) return nullptr;
  std::vector<std::string> names = top_sections(binding);
  for (const Field& field : binding.fields) names.push_back(field.leaf());
  const size_t num_ours = names.size();
  for (const ForeignKey& foreign : foreign_keys())
    if (!foreign.name.ends_with('*')) names.emplace_back(foreign.name);  // "wandb_*" is no key
  const std::string near = nearest(leaf, names);
  const auto ours_end = names.begin() + static_cast<std::ptrdiff_t>(num_ours);
  if (near.empty() || std::find(names.begin(), ours_end, near) != ours_end) return nullptr;
  return find_foreign_key(near);
}

/// The section of another trainer's file in which `key` is, if that has no key of ours: `vllm` of
/// `vllm.dtypes`; nullptr: none.
const ForeignKey* foreign_section(const std::string& key, const Binding& binding) {
  const std::string section = key.substr(0, key.find('.'));
  const bool is_inside = section.size() < key.size() && !binding.has_section(section);
  if (!is_inside || !same_leaf(leaf_of(key), names_in(binding, "")).empty()) return nullptr;
  return find_foreign_key(section);
}

/// Answers keys of inner sections that have few keys: `offload.optimizer` without its `parallel`,
/// and `parallel.offload.gradients`.
std::string suggest_inner_key(const std::string& key, const Binding& binding) {
  constexpr size_t kFew = 4;
  const std::string section = section_of(key);
  for (const Section& inner : binding.sections) {
    const bool is_whole = inner.name == section;
    if (section.empty() || inner.name.find('.') == std::string::npos ||
        (!is_whole && leaf_of(inner.name) != section))
      continue;
    const std::string leaf = leaf_of(key);
    const std::vector<std::string> names = names_in(binding, inner.name);
    if (const std::string same = same_leaf(leaf, names); !same.empty() && !is_whole)
      return fmt::format("did you mean `{}`?", same);
    if (names.size() > kFew) continue;
    if (const std::string near = nearest_by_leaf(leaf, names); !near.empty())
      return fmt::format("did you mean `{}`?", near);
    std::vector<std::string> leaves;
    for (const std::string& name : names) leaves.push_back(leaf_of(name));
    return fmt::format("did you mean one of {}?", join(leaves, ", "));
  }
  return {};
}

}  // namespace

const UnsupportedKey* find_unsupported_key(const std::string& key) {
  const auto matches = [&](const UnsupportedKey& later) {
    if (later.key.ends_with('*')) return key.starts_with(later.key.substr(0, later.key.size() - 1));
    return key == later.key || key.starts_with(std::string(later.key) + ".");
  };
  const auto found = std::find_if(kLaterKeys.begin(), kLaterKeys.end(), matches);
  return found == kLaterKeys.end() ? nullptr : &*found;
}

bool has_main_keys(std::string_view key) {
  return key == "train.early_stopping";
}

std::string main_key(const std::string& key) {
  const bool is_inside = has_main_keys(section_of(key));
  const std::string leaf = leaf_of(key);
  if (!is_inside || (leaf != "patience" && leaf != "threshold")) return key;
  return fmt::format("{}_{}", section_of(key), leaf);
}

bool is_harmless(const UnsupportedKey& later, const Value& value) {
  if (value.kind == Value::Kind::kNull) return true;
  if (value.kind != Value::Kind::kScalar) return value.items.empty();
  return value.text.empty() || value.text == later.harmless || parse_bool(value.text) == false;
}

std::string setting_named(const std::string& name) {
  if (const ForeignKey* foreign = find_foreign_key(name)) return std::string(foreign->field);
  RunConfig defaults;
  const Binding binding = bind(defaults);
  return field_named(same_leaf(name, names_in(binding, "")), binding);
}

std::string setting_of_section(std::string_view section) {
  constexpr auto kMeant =
      std::to_array<std::pair<std::string_view, std::string_view>>({{"model", "name"},
                                                                    {"data", "train"},
                                                                    {"tuning", "mode"},
                                                                    {"parallel", "strategy"},
                                                                    {"output", "dir"}});
  for (const auto& [name, leaf] : kMeant)
    if (name == section) return fmt::format("{}.{}", name, leaf);
  return {};
}

std::string field_named(const std::string& name, const Binding& binding) {
  if (!binding.has_section(name)) return name;
  const auto first = std::find_if(binding.fields.begin(), binding.fields.end(),
                                  [&](const Field& field) { return field.section() == name; });
  return first == binding.fields.end() ? "" : first->key;
}

std::string advice_on_key(const std::string& name) {
  const ForeignKey* foreign = find_foreign_key(name);
  return foreign == nullptr ? "" : advice_on(*foreign, {});
}

std::string nearest_key(const std::string& key, const Binding& binding) {
  const std::string leaf = leaf_of(key), section = section_of(key);
  const std::vector<std::string> all = names_in(binding, "");
  if (std::string same = same_leaf(leaf, all); !same.empty()) return same;
  if (section.empty()) {
    if (std::string near = nearest(leaf, top_sections(binding)); !near.empty()) return near;
  }
  if (binding.has_section(section)) {
    if (std::string near = nearest_by_leaf(leaf, names_in(binding, section)); !near.empty())
      return near;
  }
  if (std::string near = nearest_by_leaf(leaf, all); !near.empty()) return near;
  return nearest(key, all);
}

std::string suggest_key(const std::string& key, const Value& value, const Binding& binding) {
  if (std::string inner = suggest_inner_key(key, binding); !inner.empty()) return inner;
  if (const ForeignKey* foreign = find_foreign_key(key)) return advice_on(*foreign, value);
  if (const ForeignKey* section = foreign_section(key, binding)) return advice_on(*section, {});
  const ForeignKey* foreign = nearest_foreign(leaf_of(key), binding);
  // "not needed; remove it" would be wrong for a misspelt key of ours.
  const bool is_ours = foreign != nullptr && foreign->field.empty() &&
                       !nearest_by_leaf(leaf_of(key), names_in(binding, "")).empty();
  if (foreign != nullptr && !is_ours)
    return fmt::format("did you mean `{}`? {}", foreign->name, advice_on(*foreign, value));
  const std::string near = nearest_key(key, binding);
  if (near.empty()) return "`sftrun config reference` lists every key";
  if (near == key) {  // written with dots, but YAML needs nesting
    return fmt::format("write `{}:` inside `{}:`", leaf_of(near), section_of(near));
  }
  return fmt::format("did you mean `{}`?", near);
}

}  // namespace sftrun::config
