#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "rule.h"
#include "sftrun/config/optimizers.h"
#include "sftrun/core/error.h"

/// Reads the tables of the tools, and answers which tools there are.
namespace sftrun::foreign {
namespace {

using config::TableRow;

Convert function_named(const ToolCode& code, const TableRow& row, const std::string& name) {
  for (const std::span<const Converter> list : {code.converters, shared_converters()}) {
    const auto found = std::find_if(list.begin(), list.end(),
                                    [&](const Converter& one) { return one.name == name; });
    if (found != list.end()) return found->function;
  }
  row.fail(fmt::format("no function is named `{}`", name));
}

constexpr auto kEffects =
    std::to_array<std::pair<std::string_view, Effect>>({{"field", Effect::kField},
                                                        {"no_meaning", Effect::kNoMeaning},
                                                        {"lost", Effect::kLost},
                                                        {"refused", Effect::kRefused},
                                                        {"convert", Effect::kConverted},
                                                        {"elsewhere", Effect::kElsewhere}});

/// Their words and ours: of the row, or DeepSpeed's names of optimizers in alphabetical order.
config::TextPairs words_of(const TableRow& row) {
  if (!row.has("optimizers")) return row.pairs("words");
  if (row.text("optimizers") != "deepspeed") row.fail("`optimizers` is `deepspeed`");
  config::TextPairs words;
  for (const config::OptimizerInfo& info : config::kOptimizers)
    for (const std::string_view type : info.deepspeed) words.emplace_back(type, info.name);
  std::sort(words.begin(), words.end());
  return words;
}

/// What the row says of all its keys.
ImportRule rule_of(const ToolCode& code, const TableRow& row) {
  row.require_only({"keys", "words", "optimizers", "harmless", "field", "no_meaning", "lost",
                    "refused", "convert", "elsewhere"});
  const auto is_named = [&](const auto& one) { return row.has(one.first); };
  if (std::count_if(kEffects.begin(), kEffects.end(), is_named) != 1)
    row.fail("a row has one of field, no_meaning, lost, refused, convert and elsewhere");
  const auto& [name, effect] = *std::find_if(kEffects.begin(), kEffects.end(), is_named);
  const config::TextPairs words = words_of(row);
  if (!words.empty() && effect != Effect::kField) row.fail("`words` needs `field`");
  if (row.has("harmless") && effect != Effect::kLost && effect != Effect::kRefused)
    row.fail("`harmless` needs `lost` or `refused`");
  ImportRule rule{.effect = words.empty() ? effect : Effect::kWords,
                  .words = words,
                  .harmless = row.text("harmless")};
  if (effect == Effect::kConverted)
    rule.convert = function_named(code, row, row.text(name));
  else
    (effect == Effect::kField ? rule.field : rule.note) = row.text(name);
  return rule;
}

std::vector<ImportRule> rules_of(const ToolCode& code, const TableRow& table) {
  std::vector<ImportRule> rules;
  for (const TableRow& row : table.rows("rules")) {
    ImportRule rule = rule_of(code, row);
    const std::vector<std::string> keys = row.list("keys");
    if (keys.empty()) row.fail("a row without keys");
    for (const std::string& key : keys) {
      rule.key = key;
      rules.push_back(rule);
    }
  }
  return rules;
}

std::vector<ToolDefault> defaults_of(const TableRow& table) {
  std::vector<ToolDefault> defaults;
  for (const TableRow& row : table.rows("defaults")) {
    row.require_only({"field", "value", "unless"});
    defaults.push_back({row.text("field"), row.text("value"), row.text("unless")});
  }
  return defaults;
}

/// Each tool's table, read when it is first needed: a run that names a file of DeepSpeed does not
/// wait for the others.
template <const ToolCode& (*code)()>
const ImportTable& table_from() {
  static const ImportTable table = read_table(code());
  return table;
}

}  // namespace

ImportTable read_table(const ToolCode& code) {
  const std::string name = fmt::format("{}.yaml", code.word);
  const Value document = config::parse_table(code.table, name);
  const TableRow table(name, document);
  table.require_only({"signs", "objective_keys", "adapter_line", "prefixes", "defaults", "rules"});
  ImportTable result{code};
  result.rules = rules_of(code, table);
  result.signs = table.list("signs");
  result.objective_keys = table.list("objective_keys");
  result.defaults = defaults_of(table);
  result.adapter_line = table.text("adapter_line");
  result.prefixes = table.pairs("prefixes");
  return result;
}

std::span<const ToolCode* const> tools() {
  static const std::array<const ToolCode*, 6> all = {&accelerate(),    &deepspeed(), &axolotl(),
                                                     &llama_factory(), &trl(),       &torchtune()};
  return all;
}

const ImportTable& table_of(Tool tool) {
  switch (tool) {
    case Tool::kAccelerate:
      return table_from<accelerate>();
    case Tool::kDeepSpeed:
      return table_from<deepspeed>();
    case Tool::kAxolotl:
      return table_from<axolotl>();
    case Tool::kLlamaFactory:
      return table_from<llama_factory>();
    case Tool::kTrl:
      return table_from<trl>();
    case Tool::kTorchtune:
      return table_from<torchtune>();
  }
  invariant_failed(__FILE__, __LINE__, "every tool has a table");
}

std::span<const ImportTable* const> import_tables() {
  static const std::vector<const ImportTable*> tables = [] {
    std::vector<const ImportTable*> all;
    for (const ToolCode* code : tools()) all.push_back(&table_of(code->tool));
    return all;
  }();
  return tables;
}

std::string_view tool_name(Tool tool) {
  return tools()[static_cast<size_t>(tool)]->name;
}

std::string_view tool_word(Tool tool) {
  return tools()[static_cast<size_t>(tool)]->word;
}

std::vector<std::string> tool_words() {
  std::vector<std::string> words;
  for (const ToolCode* code : tools()) words.emplace_back(code->word);
  return words;
}

std::optional<Tool> tool_of(std::string_view word) {
  for (const ToolCode* code : tools())
    if (code->word == word) return code->tool;
  return std::nullopt;
}

}  // namespace sftrun::foreign
