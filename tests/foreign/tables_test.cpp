#include <fmt/format.h>

#include <fstream>
#include <set>

#include "foreign/import_test_base.h"
#include "sftrun/config/field_value.h"
#include "sftrun/config/yaml_reader.h"

namespace sftrun::foreign {
namespace {

using config::are_same, config::bind, config::Binding, config::Field, config::parse_yaml_value;

/// A file with one key.
Value document_with(const std::string& key, const Value& value) {
  Value document = value;
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    parts.push_back(key.substr(begin, end - begin));
    begin = end + 1;
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    Value map;
    map.kind = Value::Kind::kMap;
    map.keys.push_back({*part, {1, 1}});
    map.items.push_back(std::move(document));
    document = std::move(map);
  }
  return document;
}

/// The rule's key; of a rule for many keys, one of them.
std::string one_key(const ImportRule& rule) {
  std::string key(rule.key);
  if (key.ends_with('*')) key.replace(key.size() - 1, 1, "anything");
  return key;
}

Conversion conversion_of(const ImportTable& table, const ImportRule& rule, const Value& value) {
  Conversion conversion(table, "file", document_with(one_key(rule), value));
  conversion.run();
  return conversion;
}

bool names(const Problems& problems, const std::string& key) {
  return std::any_of(problems.begin(), problems.end(), [&](const Problem& problem) {
    return problem.message.find("`" + key + "`") != std::string::npos;
  });
}

const Given* given_for(const Conversion& conversion, std::string_view field) {
  const auto found = std::find_if(
      conversion.given.begin(), conversion.given.end(),
      [&](const Given& one) { return one.assignment.key == field && !one.from.empty(); });
  return found == conversion.given.end() ? nullptr : &*found;
}

class TablesTest : public ImportTest {
 protected:
  template <class Check>
  void for_rules(Effect effect, const Check& check) {
    size_t count = 0;
    for (const ImportTable* table : import_tables()) {
      for (const ImportRule& rule : table->rules) {
        if (rule.effect != effect) continue;
        SCOPED_TRACE(fmt::format("{} {}", table->name, rule.key));
        check(*table, rule);
        ++count;
      }
    }
    EXPECT_GT(count, 3U);
  }
  std::string example_of(std::string_view field) {
    return fields_.find(std::string(field))->example;
  }

  RunConfig defaults_;
  Binding fields_ = bind(defaults_);
};

TEST_F(TablesTest, HaveEachKeyOnceAndAWordForEachTool) {
  EXPECT_EQ(import_tables().size(), 6U);
  for (const ImportTable* table : import_tables()) {
    std::set<std::string_view> keys;
    for (const ImportRule& rule : table->rules)
      EXPECT_TRUE(keys.insert(rule.key).second) << table->name << " " << rule.key;
    EXPECT_EQ(tool_of(table->word), table->tool);
    EXPECT_EQ(table->objective_keys.empty(), table->is_strict)
        << table->name << ": of trainers only";
    for (const std::string_view key : table->objective_keys)
      EXPECT_TRUE(keys.contains(key)) << table->name << " " << key;
    for (const ToolDefault& one : table->defaults)
      EXPECT_NE(fields_.find(std::string(one.field)), nullptr) << one.field;
  }
  EXPECT_FALSE(tool_of("unsloth"));
}

TEST_F(TablesTest, FieldsAreSetToTheValue) {
  for_rules(Effect::kField, [&](const ImportTable& table, const ImportRule& rule) {
    ASSERT_NE(fields_.find(std::string(rule.field)), nullptr) << rule.field;
    const Value value = parse_yaml_value(example_of(rule.field));
    const Conversion conversion = conversion_of(table, rule, value);
    const Given* given = given_for(conversion, rule.field);
    ASSERT_NE(given, nullptr);
    EXPECT_TRUE(are_same(rule.field, given->assignment.value, value));
    EXPECT_EQ(given->from, rule.key);
    EXPECT_TRUE(given->is_firm);
  });
}

TEST_F(TablesTest, WordsAreSetToTheirEquivalents) {
  for_rules(Effect::kWords, [&](const ImportTable& table, const ImportRule& rule) {
    Field* field = fields_.find(std::string(rule.field));
    ASSERT_NE(field, nullptr);
    EXPECT_FALSE(rule.words.empty());
    for (const auto& [theirs, ours] : rule.words) {
      const Conversion conversion = conversion_of(table, rule, Value::scalar(theirs));
      const Given* given = given_for(conversion, rule.field);
      ASSERT_EQ(given == nullptr, ours.empty()) << theirs;
      if (ours.empty()) continue;
      EXPECT_EQ(given->assignment.value.text, ours);
      EXPECT_FALSE(field->assign(Value::scalar(ours))) << ours;
    }
    const Conversion other = conversion_of(table, rule, Value::scalar("no-such-word"));
    EXPECT_EQ(given_for(other, rule.field), nullptr);
    EXPECT_TRUE(names(other.problems, std::string(rule.key)) ||
                has_key(other.not_carried, std::string(rule.key)));
  });
}

TEST_F(TablesTest, KeysWithoutAMeaningAreNamedWithTheReason) {
  for_rules(Effect::kNoMeaning, [&](const ImportTable& table, const ImportRule& rule) {
    EXPECT_FALSE(rule.note.empty());
    const Conversion conversion = conversion_of(table, rule, Value::scalar("true"));
    EXPECT_TRUE(has_key(conversion.no_meaning, one_key(rule)));
    EXPECT_FALSE(names(conversion.problems, one_key(rule)));
  });
}

TEST_F(TablesTest, LostAndRefusedKeysAreHarmlessWhereTheyAreOff) {
  for (const Effect effect : {Effect::kLost, Effect::kRefused}) {
    for_rules(effect, [&](const ImportTable& table, const ImportRule& rule) {
      EXPECT_FALSE(rule.note.empty());
      const auto is_named = [&](const Value& value) {
        const Conversion conversion = conversion_of(table, rule, value);
        return effect == Effect::kLost ? has_key(conversion.not_carried, one_key(rule))
                                       : names(conversion.problems, one_key(rule));
      };
      EXPECT_TRUE(is_named(Value::scalar("cpu")));
      for (const char* off : {"false", "no", "none", "0", "null", ""})
        EXPECT_FALSE(is_named(Value::scalar(off))) << off;
      EXPECT_FALSE(is_named(Value{}));
      EXPECT_FALSE(is_named(Value::scalar(std::string(rule.harmless))));
    });
  }
}

TEST_F(TablesTest, ConvertedKeysTakeNothingAndAnythingWithoutAnException) {
  for (const Effect effect : {Effect::kConverted, Effect::kElsewhere}) {
    for_rules(effect, [&](const ImportTable& table, const ImportRule& rule) {
      EXPECT_EQ(rule.convert != nullptr, effect == Effect::kConverted);
      const Conversion nothing = conversion_of(table, rule, Value{});
      EXPECT_EQ(std::count_if(nothing.given.begin(), nothing.given.end(),
                              [](const Given& one) { return !one.from.empty(); }),
                0);
      for (const char* text : {"[]", "{}", "[1]", "{a: [b]}", "-1", "1e300", "'\\n'", "[[{}]]"})
        EXPECT_NO_THROW(conversion_of(table, rule, parse_yaml_value(text))) << text;
    });
  }
}

TEST_F(TablesTest, EachFunctionHasARowAndANameOfItsOwn) {
  std::set<Convert> used;
  for (const ImportTable* table : import_tables())
    for (const ImportRule& rule : table->rules) used.insert(rule.convert);
  for (const Converter& one : shared_converters())
    EXPECT_TRUE(used.contains(one.function)) << one.name;
  for (const ToolCode* code : tools()) {
    std::set<std::string_view> names;
    for (const std::span<const Converter> list : {shared_converters(), code->converters})
      for (const Converter& one : list)
        EXPECT_TRUE(names.insert(one.name).second) << code->name << " " << one.name;
    for (const Converter& one : code->converters)
      EXPECT_TRUE(used.contains(one.function)) << code->name << " " << one.name;
  }
}

TEST_F(TablesTest, ATableThatSaysNotWhatAKeyDoesIsAnError) {
  const auto error_of = [](const std::string& row) -> std::string {
    const std::string table = "rules:\n- " + row;
    ToolCode code = deepspeed();
    code.table = table;
    try {
      read_table(code);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of("{keys: [a, b.*], lost: why, harmless: '1'}"), "no error");
  for (const auto& [row, message] : std::vector<std::pair<std::string, std::string>>{
           {"{keys: [a]}", "a row has one of field, no_meaning"},
           {"{keys: [a], field: train.seed, lost: why}", "a row has one of field, no_meaning"},
           {"{keys: [a], ignored: why}", "unknown entry `ignored`"},
           {"{keys: [a], convert: no_function}", "no function is named `no_function`"},
           {"{keys: [a], lost: why, words: {x: y}}", "`words` needs `field`"},
           {"{keys: [a], field: train.seed, harmless: '1'}", "`harmless` needs `lost`"},
           {"{keys: [], lost: why}", "a row without keys"},
           {"{lost: why}", "a row without keys"}}) {
    const std::string error = error_of(row);
    EXPECT_NE(error.find(message), std::string::npos) << error;
    EXPECT_NE(error.find("deepspeed.yaml:2"), std::string::npos) << error;
  }
}

/// scripts/fixtures/make_foreign_keys.py lists the keys of each tool.
TEST_F(TablesTest, NoKeyOfATrainerIsUnknown) {
  std::ifstream file(std::string(SFTRUN_TEST_DATA) + "/config/foreign_keys.txt");
  size_t count = 0;
  for (std::string tool, key; file >> tool >> key;) {
    const auto found = tool_of(tool.substr(0, tool.find('.')));  // "trl.SFTConfig"
    if (!found || *found == Tool::kAccelerate) continue;
    Conversion conversion(table_of(*found), "file", document_with(key, Value::scalar("value")));
    conversion.run();
    for (const ImportNote& note : conversion.not_carried) {
      EXPECT_FALSE(note.why == "not known here" || note.why.starts_with("not a key of"))
          << tool << " " << key;
    }
    ++count;
  }
  EXPECT_GT(count, 400U);
}

}  // namespace
}  // namespace sftrun::foreign
