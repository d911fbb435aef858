#include <chrono>

#include "config_test_base.h"
#include "sftrun/config/machine_file.h"
#include "sftrun/config/problem.h"
#include "support/expect_error.h"

/// What people's files hold beside plain values: paths of their home directory, words for none, other encodings, names and numbers of
/// any length.
namespace sftrun::config {
namespace {

using test::expect_error;

class UserInputTest : public ConfigTest {
 protected:
  /// @param text the whole file
  LoadedConfig load_whole(const std::string& text) {
    return load_config(write("whole.yaml", text), {"model.name=m", "data.train=t.jsonl"});
  }
  UserInputTest() {
    if (const char* home = std::getenv("HOME")) home_ = home;
    ::setenv("HOME", "/home/somebody", 1);
  }
  ~UserInputTest() override { ::setenv("HOME", home_.c_str(), 1); }
  std::string home_;
};

TEST_F(UserInputTest, TildeIsTheHomeDirectoryInEveryPath) {
  const auto file = write("whole.yaml", R"(
data: {train: [~/a.jsonl, {path: ~/b.jsonl}], val: ~/v.jsonl, cache_dir: ~/cache}
output: {dir: ~/out}
tuning: {lora: {init_from: ~/adapter}}
)");
  const LoadedConfig loaded =
      load_config(file, {"model.name=~/model", "model.chat_template=~/t.jinja"});
  const RunConfig& config = loaded.config;
  EXPECT_EQ(config.data.train[0].path, "/home/somebody/a.jsonl");
  EXPECT_EQ(config.data.train[1].path, "/home/somebody/b.jsonl");
  EXPECT_EQ(config.data.val[0].path, "/home/somebody/v.jsonl");
  EXPECT_EQ(config.data.cache_dir, "/home/somebody/cache");
  EXPECT_EQ(config.output.dir, "/home/somebody/out");
  EXPECT_EQ(config.tuning.lora.init_from, "/home/somebody/adapter");
  EXPECT_EQ(config.model.name, "/home/somebody/model");
  EXPECT_EQ(config.model.chat_template, "/home/somebody/t.jinja");
  set("SFTRUN_OUTPUT__DIR", "~/of environment");
  EXPECT_EQ(load("").config.output.dir, "/home/somebody/of environment");
  EXPECT_EQ(load("", {"output.dir=./~"}).config.output.dir, "./~");
}

TEST_F(UserInputTest, WordsForNoneMeanNoPath) {
  for (const std::string word :
       {"none", "None", "NONE", "null", "Null", "NULL", "~", "'None'", "\"null\""}) {
    const std::string text =
        "data: {val: WORD, cache_dir: WORD}\noutput: {dir: WORD}\n"
        "tuning: {lora: {init_from: WORD}}\n"
        "parallel: {accelerate: WORD, deepspeed: WORD}\n";
    std::string yaml = text;
    for (size_t at = yaml.find("WORD"); at != std::string::npos; at = yaml.find("WORD"))
      yaml.replace(at, 4, word);
    for (const LoadedConfig& loaded :
         {load_whole(yaml + "model: {chat_template: " + word + "}\n"),
          load("", {"data.val=" + word, "data.cache_dir=" + word, "output.dir=" + word,
                    "tuning.lora.init_from=" + word, "parallel.accelerate=" + word,
                    "parallel.deepspeed=" + word})}) {
      const RunConfig& config = loaded.config;
      EXPECT_TRUE(config.data.val.empty()) << word;
      EXPECT_EQ(config.data.cache_dir, "none") << word;
      EXPECT_EQ(config.output.dir, "") << word;
      EXPECT_EQ(config.tuning.lora.init_from, "") << word;
      EXPECT_EQ(config.model.chat_template, "") << word;
    }
    expect_error<ConfigProblems>([&] { load("", {"model.name=" + word}); },
                                 {"`model.name` is missing"});
    expect_error<ConfigProblems>([&] { load("", {"data.train=" + word}); },
                                 {"`data.train` is missing"});
  }
}

TEST_F(UserInputTest, AnEmptyValueIsTheDefault) {
  EXPECT_EQ(load_whole("data: {cache_dir: }\n").config.data.cache_dir, "");
  EXPECT_EQ(load("", {"data.cache_dir="}).config.data.cache_dir, "");
}

/// UTF-16 as Windows' editors write it.
std::string utf16(const std::string& ascii, bool has_mark) {
  std::string bytes = has_mark ? "\xFF\xFE" : "";
  for (const char c : ascii) bytes += std::string{c, '\0'};
  return bytes;
}

TEST_F(ConfigTest, Utf16IsNamed) {
  for (const char* name : {"run.yaml", "run.json"}) {
    for (const bool has_mark : {true, false}) {
      const auto file = write(name, utf16("model: {name: m}\n", has_mark));
      expect_error<ConfigProblems>([&] { load_config(file, {}); },
                                   {"the file is UTF-16, not UTF-8", "iconv -f UTF-16 -t UTF-8"});
    }
  }
}

TEST_F(ConfigTest, JsonMayWriteEmojisAsPairs) {
  const auto file =
      write("run.json",
            R"({"model": {"name": "m"}, "data": {"train": "t.jsonl", "chat_template_kwargs":
          {"a": "x\ud83d\ude42y", "b": "\\ud83d\\ude42", "\uD83D\uDE00": "\u00e9\/"}}})");
  const auto& kwargs = load_config(file, {}).config.data.chat_template_kwargs;
  EXPECT_EQ(kwargs["a"], "x🙂y");
  EXPECT_EQ(kwargs["b"], "\\ud83d\\ude42");
  EXPECT_EQ(kwargs["😀"], "é/");
  const LoadedConfig loaded = load("", {R"(data.chat_template_kwargs={"a": "\ud83d\ude42"})"});
  EXPECT_EQ(loaded.config.data.chat_template_kwargs["a"], "🙂");
  // Half a pair is no character.
  const auto half = write("half.json", R"({"model": {"name": "\ud83d"}})");
  expect_error<ConfigProblems>([&] { load_config(half, {}); }, {"not valid JSON"});
}

TEST_F(ConfigTest, NulBytesCutNoName) {
  for (const char* text :
       {"output: {dir: \"a\\0b\"}", "data: {val: \"v.jsonl\\0x\"}", "\"tr\\0ain\": 1",
        "data: {chat_template_kwargs: {\"a\\0b\": 1}}", "model: {chat_template: \"x\\u0000\"}"}) {
    const auto file = write("nul.yaml", text);
    expect_error<ConfigProblems>([&] { load_config(file, {}); }, {"a NUL byte in `"});
  }
  expect_error<ConfigProblems>([&] { load("", {R"(output.dir="a\0b")"}); }, {"a NUL byte in `a`"});
}

TEST_F(ConfigTest, MessagesQuoteTwoHundredCharacters) {
  const std::string word(40'000, 'w'), number(40'000, '7');
  const std::vector<std::vector<std::string>> overrides = {
      {"train.epochs=" + word},
      {"train.max_steps=" + number},
      {word},
      {word + "=1"},
      {"train." + word + "=1"},
      {"data.fields={" + word + ": " + number + "}"},
      {"parallel.timeout=" + word},
      {"parallel.device_map=" + word},
      {"data.train=[{" + word + ": 1}]"},
      {"tuning.mode=" + word},
      {"tuning.lora.rank_pattern={" + word + ": " + number + "}"},
      {"callbacks.events=[" + word + "]"}};
  for (const auto& words : overrides) {
    try {
      load("", words);
      ADD_FAILURE() << words[0].substr(0, 50);
    } catch (const ConfigError& error) {
      EXPECT_LT(std::string_view(error.what()).size(), 2500U) << words[0].substr(0, 50);
      for (const std::string& quoted : {std::string(201, 'w'), std::string(201, '7')})
        EXPECT_EQ(std::string_view(error.what()).find(quoted), std::string::npos)
            << words[0].substr(0, 50);
    }
  }
}

TEST_F(ConfigTest, NumbersBeyondTheirTypesAreRefused) {
  for (const char* word :
       {"parallel.pp=2147483648", "parallel.tp=2147483648", "parallel.dp_shard=4294967297",
        "parallel.timeout=300000000000", "parallel.timeout=109500d", "train.save_every=1e300",
        "callbacks.timeout=2628000h", "parallel.stall_after=99999d", "data.val_split=1e300",
        "model.max_seq_len=9223372036854775807", "train.max_steps=9223372036854775807",
        "train.ddp_bucket_cap_mb=9223372036854775807", "data.seed=9223372036854775807"}) {
    expect_error<ConfigProblems>([&] { load("", {word}); }, {"it takes "});
  }
}

/// Without its unit the time between checkpoints would be taken for steps.
TEST_F(ConfigTest, SaveEveryHasAUnit) {
  expect_error<ConfigProblems>([&] { load("train: {save_every: 1}\n"); },
                               {"`train.save_every` is `1`, a time without a unit",
                                "write 1s; for steps, set train.save_steps: 1 in its place"});
  expect_error<ConfigProblems>([&] { load("", {"train.save_every=0.5"}); },
                               {"a time without a unit", "write 0.5s"});
  for (const char* word : {"train.save_every=0", "train.save_every=1s", "train.save_every=1h30m"})
    EXPECT_NO_THROW(load("", {word})) << word;
}

TEST_F(ConfigTest, NumbersThatJsonCannotHoldAreRefusedInMaps) {
  const std::string long_integer(30, '9');
  const std::vector<std::pair<std::string, std::string>> numbers = {
      {".inf", "is not finite"},
      {"-.INF", "is not finite"},
      {"+.Inf", "is not finite"},
      {".NaN", "is not finite"},
      {"1e400", "is beyond the range"},
      {"-1.0e+400", "is beyond the range"},
      {long_integer, "has more than 64 bits"}};
  for (const auto& [number, reason] : numbers) {
    const std::string what = fmt::format("the number {}, which {}", number, reason);
    const auto refused = [&, what = what](const std::string& section, const std::string& text) {
      expect_error<ConfigProblems>(
          [&] { load_config(write("run.yaml", "model: {name: m}\n" + section + text), {}); },
          {what, "run.yaml:", "write another number, or in quotes, as a text"});
    };
    refused("data:\n  train: t.jsonl\n",
            fmt::format("  chat_template_kwargs: {{a: [1, {{b: {}}}]}}\n", number));
    refused("data:\n", fmt::format("  train: [{{path: t, fields: {{prompt: {}}}}}]\n", number));
    refused("data: {train: t}\n",
            fmt::format("tuning: {{lora: {{alpha_pattern: {{q_proj: {}}}}}}}\n", number));
    expect_error<ConfigProblems>([&] { load("", {"data.chat_template_kwargs.a=" + number}); },
                                 {what, "from the command line"});
    EXPECT_EQ(load("", {fmt::format("data.chat_template_kwargs.a=\"{}\"", number)})
                  .config.data.chat_template_kwargs.dump(),
              fmt::format("{{\"a\":\"{}\"}}", number));
  }
  EXPECT_EQ(load("", {"data.chat_template_kwargs={a: inf, b: nan, c: 1e300}"})
                .config.data.chat_template_kwargs.dump(),
            R"({"a":"inf","b":"nan","c":1e+300})")
      << "texts in YAML";
}

TEST_F(ConfigTest, ManyKeysTakeLittleTime) {
  std::string keys;
  for (int i = 0; i < 40'000; ++i) keys += fmt::format("\"key number {}\": {}, ", i, i);
  const std::string base = "{\"model\": {\"name\": \"m\"}, \"data\": {\"train\": \"t.jsonl\", ";
  const auto begin = std::chrono::steady_clock::now();
  const LoadedConfig loaded = load_config(
      write("run.json", base + "\"chat_template_kwargs\": {" + keys + "\"z\": 1}}}"), {});
  EXPECT_EQ(loaded.config.data.chat_template_kwargs.size(), 40'001U);
  EXPECT_THROW(load("a: &a {" + keys + "}\nb: {<<: *a, " + keys + "}\n"), ConfigError);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(passed.count(), 20);  // with the square of the keys it took minutes
}

TEST_F(UserInputTest, MapsKeepTheirOrder) {
  const LoadedConfig loaded = load_whole(R"(
tuning: {lora: {rank_pattern: {layers.0.self_attn.q_proj: 3, '.*': 6, a: 1}}}
data: {chat_template_kwargs: {z: 1, b: {y: 1, x: 2}, a: 3}}
)");
  const RunConfig read = from_json(nlohmann::ordered_json::parse(to_json(loaded.config).dump()));
  EXPECT_EQ(read.tuning.lora.rank_pattern.dump(),
            R"({"layers.0.self_attn.q_proj":3,".*":6,"a":1})");
  EXPECT_EQ(read.data.chat_template_kwargs.dump(), R"({"z":1,"b":{"y":1,"x":2},"a":3})");
}

// PyYAML puts the keys of a merge before those of the map.
TEST_F(UserInputTest, MergedKeysKeepPyYamlsOrder) {
  const LoadedConfig loaded = load_whole(R"(
data:
  fields: &first {system: s, prompt: p}
  chat_template_kwargs: {<<: [*first, {tools: t, system: last}], extra: 1, prompt: own}
)");
  EXPECT_EQ(loaded.config.data.chat_template_kwargs.dump(),
            R"({"tools":"t","system":"s","prompt":"own","extra":1})");
}

TEST_F(ConfigTest, PatternsThatPeftCannotReadAreRefused) {
  for (const char* key : {"(?i)Q_PROJ", "(?x)q _proj", "(?s).*q_proj", "[[:alpha:]]_proj",
                          "\\p{L}_proj", "q_proj++", "\\hq", "q\\K", "(?<n>q)", "(?~q)"}) {
    for (const char* field : {"rank_pattern", "alpha_pattern"})
      expect_error<ConfigProblems>(
          [&] { load("", {fmt::format("tuning.lora.{}={{'{}': 3}}", field, key)}); },
          {"which is not a regular expression"});
  }
  load("", {"tuning.lora.rank_pattern={'(?i:Q_PROJ)': 3, 'layers\\.[01]\\.mlp': 2}"});
}

TEST(DeviceList, OfAnyLengthIsRead) {
  std::string list = "0";
  for (int i = 0; i < 100'000; ++i) list += ",1";
  EXPECT_TRUE(is_device_list(list));
  EXPECT_TRUE(is_device_list(list + ","));
  EXPECT_FALSE(is_device_list(list + ",,"));
  for (const char* text : {"auto", "cpu", "2", "0,2,3", "1,"})
    EXPECT_TRUE(is_device_list(text)) << text;
  for (const char* text : {"", ",", "1,,2", "gpu", "1 ", "-1"})
    EXPECT_FALSE(is_device_list(text)) << text;
}

}  // namespace
}  // namespace sftrun::config
