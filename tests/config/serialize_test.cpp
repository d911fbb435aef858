#include <algorithm>
#include <set>

#include "choices.h"
#include "config_test_base.h"
#include "fields.h"
#include "layers.h"
#include "sftrun/config/binding.h"
#include "sftrun/config/yaml_reader.h"
#include "support/expect_error.h"

namespace sftrun::config {
namespace {

/// A configuration in which every field has the value of its example.
RunConfig from_examples() {
  RunConfig config;
  Binding binding = bind(config);
  for (const Field& field : binding.fields) {
    const auto complaint = field.assign(parse_yaml_value(field.example));
    EXPECT_FALSE(complaint) << field.key << ": " << field.example << " "
                            << (complaint ? complaint->what : "");
  }
  return config;
}

TEST(Fields, HaveNamesHelpAndExamplesThatParse) {
  RunConfig config;
  const Binding binding = bind(config);
  std::set<std::string> keys;
  for (const Field& field : binding.fields) {
    EXPECT_TRUE(keys.insert(field.key).second) << field.key << " is listed twice";
    EXPECT_TRUE(binding.has_section(field.section())) << field.key;
    EXPECT_GT(field.help.size(), 5u) << field.key;
    EXPECT_EQ(field.help.back(), '.') << field.key;
  }
  from_examples();
}

/// The compiler prints an enumerator by its name and any other value as a cast:
/// "value = sftrun::config::Optimizer::kSgd", "value = (sftrun::config::Optimizer)8".
template <auto value>
constexpr bool is_enumerator() {
  const std::string_view text = __PRETTY_FUNCTION__;
  constexpr std::string_view kBefore = "value = ";
  return text[text.rfind(kBefore) + kBefore.size()] != '(';
}
static_assert(is_enumerator<Strategy::kDdp>() && !is_enumerator<static_cast<Strategy>(50)>());

constexpr int kMaxEnumerators = 80;  // Quant begins at 64

template <class E, int... I>
std::vector<E> enumerators(std::integer_sequence<int, I...>) {
  std::vector<E> found;
  ((is_enumerator<static_cast<E>(I)>() ? found.push_back(static_cast<E>(I)) : void()), ...);
  return found;
}

template <class E>
void expect_words_for_all() {
  const auto values = enumerators<E>(std::make_integer_sequence<int, kMaxEnumerators>());
  EXPECT_GT(values.size(), 1u);
  std::set<std::string_view> texts;
  std::set<E> written;
  for (const auto& word : Words<E>::all) {
    EXPECT_TRUE(texts.insert(word.text).second) << word.text;
    if (word.kind == WordKind::kMain) {
      EXPECT_TRUE(written.insert(word.value).second) << word.text << " is a second main word";
    }
  }
  for (const E value : values) {
    EXPECT_TRUE(written.contains(value))
        << "choices.h has no main word for enumerator " << static_cast<int>(value) << " beside "
        << Words<E>::all.front().text;
    EXPECT_TRUE(texts.contains(word_of(value)));
  }
}

TEST(Words, EveryEnumeratorHasOne) {
  RunConfig config;
  int64_t checked = 0;
  visit_sections(config, [&](std::string_view, auto& part, std::string_view) {
    visit_fields(part, [&]<class T>(T&, auto&&...) {
      if constexpr (std::is_enum_v<T>) {
        expect_words_for_all<T>();
        ++checked;
      }
    });
  });
  const Binding binding = bind(config);
  const auto is_choice = [](const Field& field) { return field.type == FieldType::kChoice; };
  EXPECT_EQ(checked, std::count_if(binding.fields.begin(), binding.fields.end(), is_choice));
}

TEST(Json, RoundTrips) {
  for (const RunConfig& config : {RunConfig{}, from_examples()}) {
    const auto json = to_json(config);
    EXPECT_EQ(to_json(from_json(json)), json);
    EXPECT_EQ(to_json(from_json(nlohmann::ordered_json::parse(json.dump()))), json);
  }
  EXPECT_NE(to_json(from_examples()), to_json(RunConfig{}));
}

TEST(Json, ReportsMissingKeys) {
  auto json = to_json(RunConfig{});
  json["train"].erase("seed");
  json["data"]["packing"] = 3;
  test::expect_error<ConfigError>([&] { from_json(json); },
                                  {"`train.seed` is missing", "`data.packing` is `3`"});
}

TEST_F(ConfigTest, YamlRoundTrips) {
  RunConfig config;
  config.model.name = "no";  // a name that YAML readers would take for a boolean
  config.data.train = {{.path = "a b: c#d.jsonl"},
                       {.path = "no",
                        .name = "2018",
                        .split = "train",
                        .weight = 0.1 + 0.2,
                        .format = RecordFormat::kText,
                        .fields = {{"text", "a: b"}},
                        .image_root = "images",
                        .max_samples = 5}};
  config.data.val = {{.path = "1e5"}};
  config.data.fields = {{"prompt", "no"}, {"roles", {{"human", "user"}}}};
  config.model.chat_template = "{{ bos }}\n\"quoted\" 'and' \\ \t\x01 \xe2\x82\xac";
  config.data.chat_template_kwargs = {{"think", true},
                                      {"list", {1, "2", nullptr}},
                                      {"nested", {{"a-b", "x: y"}}},
                                      {"floats", {1.0, -0.0, 1e5, 1e16}}};
  config.train.adam_epsilon = 1e-8;
  config.train.learning_rate = 0.1 + 0.2;
  config.tuning.mode = TuningMode::kPartial;
  config.tuning.trainable = {"layers\\.(1|2)\\.", "no", "[a]", ""};
  resolve(config, "x.yaml", 2);
  const LoadedConfig loaded = load_config(write("resolved.yaml", to_yaml(config)), {});
  EXPECT_EQ(to_json(loaded.config).dump(2), to_json(config).dump(2));
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_TRUE(loaded.overrides.empty());
}

TEST_F(ConfigTest, ResolvedDefaultsLoadAgain) {
  RunConfig config;
  config.model.name = "m";
  config.data.train = {{.path = "t"}};
  resolve(config, "x.yaml", 1);
  const LoadedConfig loaded = load_config(write("resolved.yaml", to_yaml(config)), {});
  EXPECT_EQ(to_json(loaded.config).dump(2), to_json(config).dump(2));
}

TEST(Reference, NamesEveryKeyAndItsVariable) {
  const std::string text = reference_markdown();
  RunConfig config;
  for (const Field& field : bind(config).fields) {
    EXPECT_NE(text.find("| `" + field.leaf() + "` |"), std::string::npos) << field.key;
  }
  EXPECT_NE(text.find("`TRAIN_BATCH_SIZE`"), std::string::npos);
  EXPECT_NE(text.find("`MODEL_MAX_SEQ_LEN`"), std::string::npos);
  EXPECT_EQ(environment_name("tuning.lora.r"), "SFTRUN_TUNING__LORA__R");
}

TEST(Schema, DescribesEveryField) {
  const auto schema = nlohmann::ordered_json::parse(json_schema());
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  RunConfig config;
  for (const Field& field : bind(config).fields) {
    std::string path = "/properties/" + field.key;
    for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.'))
      path.replace(dot, 1, "/properties/");
    ASSERT_TRUE(schema.contains(nlohmann::ordered_json::json_pointer(path))) << field.key;
  }
  const auto& train = schema["properties"]["train"];
  EXPECT_EQ(train["additionalProperties"], false);
  EXPECT_EQ(train["properties"]["batch_size"]["anyOf"][0]["anyOf"][0]["const"], "auto");
  const auto& words = train["properties"]["eval_strategy"]["anyOf"][0]["enum"];
  EXPECT_NE(std::find(words.begin(), words.end(), false), words.end());
}

}  // namespace
}  // namespace sftrun::config
