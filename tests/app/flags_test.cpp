#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "cli.h"
#include "engine_location.h"
#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

TEST(Sizes, HaveDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_size("5GB", "--max-shard-size"), 5'000'000'000);
  EXPECT_EQ(parse_size("500 mb", "--max-shard-size"), 500'000'000);
  EXPECT_EQ(parse_size("2GiB", "--max-shard-size"), int64_t{2} << 30);
  EXPECT_EQ(parse_size("1.5kb", "--max-shard-size"), 1500);
  EXPECT_EQ(parse_size("123", "--max-shard-size"), 123);
  for (const char* text : {"", "0", "GB", "5 parsecs", "-1MB", "1.2.3GB", "99999999999GB"})
    test::expect_error<ConfigError>([&] { parse_size(text, "--max-shard-size"); },
                                    {"is not a size", "5GB"});
}

/// What a validator answers: empty for a good value, which it may rewrite.
std::string answer(const CLI::Validator& validator, std::string& text) {
  return validator(text);
}

TEST(Validators, NameTheNearestWord) {
  std::string word = "gguf";
  EXPECT_EQ(answer(one_of({"gguf", "safetensors"}), word), "");
  word = "ggfu";
  EXPECT_EQ(answer(one_of({"gguf", "safetensors"}), word),
            "`ggfu` is not one of gguf or safetensors; did you mean `gguf`?");
}

TEST(Validators, TakeOtherSpellingsOfTypes) {
  const auto rewritten = [](const CLI::Validator& validator, std::string word) {
    EXPECT_EQ(answer(validator, word), "");
    return word;
  };
  EXPECT_EQ(rewritten(stored_dtype(), "float32"), "f32");
  EXPECT_EQ(rewritten(stored_dtype(), "fp16"), "f16");
  EXPECT_EQ(rewritten(stored_dtype(), "bfloat16"), "bf16");
  EXPECT_EQ(rewritten(compute_dtype(), "f32"), "fp32");
  EXPECT_EQ(rewritten(compute_dtype(), "float16"), "fp16");
  EXPECT_EQ(rewritten(compute_dtype(), "auto"), "auto");
  std::string wrong = "int4";
  EXPECT_NE(answer(stored_dtype(), wrong), "");
}

TEST(Validators, KeepNumbersInTheirRange) {
  const auto is_good = [](const CLI::Validator& validator, std::string text) {
    return answer(validator, text).empty();
  };
  EXPECT_TRUE(is_good(at_least(1), "1"));
  EXPECT_FALSE(is_good(at_least(1), "0"));
  EXPECT_FALSE(is_good(at_least(1), "1.5"));
  EXPECT_TRUE(is_good(at_least(1), "1000000000"));
  for (const char* text : {"2147483648", "4294967297", "9223372036854775807"}) {
    EXPECT_FALSE(is_good(at_least(1), text)) << text;
    EXPECT_FALSE(is_good(process_count(), text)) << text;
  }
  EXPECT_TRUE(is_good(in_range(0, 1), "0.5"));
  EXPECT_FALSE(is_good(in_range(0, 1), "1.01"));
  EXPECT_FALSE(is_good(in_range(0, 1), "half"));
}

TEST(Validators, TakeOnlyDecimalNumbers) {
  for (const auto& [text, prefix] :
       std::vector<std::pair<std::string, std::string>>{{"010", "0"},
                                                        {"08", "0"},
                                                        {"-010", "0"},
                                                        {"0x1F90", "0x"},
                                                        {"+0X10", "0X"},
                                                        {"0b11", "0b"},
                                                        {" 0o17", "0o"},
                                                        {"0x1p3", "0x"},
                                                        {"00.5", "0"},
                                                        {"00", "0"}}) {
    for (const CLI::Validator& validator : {at_least(0), in_range(0, 1e5), process_count()}) {
      std::string word = text;
      EXPECT_EQ(answer(validator, word),
                fmt::format("`{}` begins with {}: write a decimal number", text, prefix));
    }
    EXPECT_EQ(to_number(text, -7), -7) << text;
  }
  for (const char* text : {"0", "-0", "0.5", "0e3", "10", "+5", "", "-", "gpu"})
    EXPECT_EQ(other_base_error(text), "") << text;
}

TEST(Words, UnderscoresOfFlagsBecomeHyphens) {
  const char* words[] = {
      "sftrun",         "train", "--nproc_per_node=2", "--train.batch_size=4", "a_b=c_d",
      "--max_restarts", "--",    "--kept_as_it_is"};
  EXPECT_EQ(with_hyphens(8, words),
            (std::vector<std::string>{"train", "--nproc-per-node=2", "--train.batch_size=4",
                                      "a_b=c_d", "--max-restarts", "--", "--kept_as_it_is"}));
}

TEST(Paths, OfFlagsMayBeginAtHomeOrBeNone) {
  const char* variable = std::getenv("HOME");
  const std::string home = variable == nullptr ? "" : variable;
  ::setenv("HOME", "/home/somebody", 1);
  CLI::App app("", "serve");
  std::string model, resume, prompt;
  std::vector<std::string> adapters;
  app.add_option("-m,--model", model);
  app.add_option("-a,--adapter", adapters)->allow_extra_args(false);
  app.add_option("--resume", resume);
  app.add_option("--prompt", prompt);
  read_paths(app);
  const auto parse = [&](std::vector<std::string> words) {
    adapters.clear();
    std::reverse(words.begin(), words.end());
    app.parse(words);
  };
  parse({"-m", "~/model", "-a", "one=~/a", "-a", "~/b=c", "--prompt", "~/x", "--resume", "None"});
  EXPECT_EQ(model, "/home/somebody/model");
  EXPECT_EQ(adapters, (std::vector<std::string>{"one=/home/somebody/a", "/home/somebody/b=c"}));
  EXPECT_EQ(resume, "never");
  EXPECT_EQ(prompt, "~/x");
  for (const char* word : {"none", "None", "null", "~"}) {
    parse({"--model", word, "--prompt", word});
    EXPECT_EQ(model, "") << word;
    EXPECT_EQ(prompt, word);
  }
  CLI::App eval("", "eval");
  eval.add_option("--adapter", model);
  read_paths(eval);
  eval.parse(std::vector<std::string>{"None", "--adapter"});
  EXPECT_EQ(model, "none");
  ::setenv("HOME", home.c_str(), 1);
}

class Outputs : public ::testing::Test {
 protected:
  fs::path write(const std::string& name) {
    fs::create_directories((directory_ / name).parent_path());
    write_file_atomically(directory_ / name, "{}");
    return directory_ / name;
  }
  void check(const std::string& name, bool overwrite = false) {
    check_output({.path = directory_ / name, .overwrite = overwrite});
  }
  test::TemporaryDirectory directory_;
};

TEST_F(Outputs, NewOnesAndEmptyDirectoriesAreTaken) {
  fs::create_directories(directory_ / "empty");
  EXPECT_NO_THROW(check("empty"));
  EXPECT_NO_THROW(check("new"));
  EXPECT_NO_THROW(check("new.gguf"));
}

TEST_F(Outputs, OnlyModelsAreReplaced) {
  write("model/config.json");
  write("documents/letter.txt");
  write("letter.txt");
  write("model.gguf");
  test::expect_error<ConfigError>([&] { check("model"); }, {"is not an empty", "--overwrite"});
  EXPECT_NO_THROW(check("model", /*overwrite=*/true));
  EXPECT_NO_THROW(check("model.gguf", /*overwrite=*/true));
  test::expect_error<ConfigError>([&] { check("documents", true); },
                                  {"without a model or adapter and is not replaced"});
  test::expect_error<ConfigError>([&] { check("letter.txt", true); }, {"is a file"});
  fs::create_directories(directory_ / "folder.gguf");
  test::expect_error<ConfigError>([&] { check("folder.gguf", true); }, {"is a directory"});
}

TEST_F(Outputs, WhatIsReadIsNotReplaced) {
  const fs::path model = write("models/base/config.json").parent_path();
  OutputFlags output{.path = directory_ / "models", .overwrite = true};
  test::expect_error<ConfigError>([&] { require_apart(output, model); }, {"would remove", "base"});
  output.path = directory_ / "models" / "merged";
  EXPECT_NO_THROW(require_apart(output, model));
  output = {.path = directory_ / "models"};
  EXPECT_NO_THROW(require_apart(output, model)) << "nothing is replaced";
}

TEST_F(Outputs, RecordsAreNotWrittenOverTheirInput) {
  const std::string input = write("in.jsonl").string(), other = write("out.csv").string();
  RecordFlags flags{.input = input, .output = "-"};
  EXPECT_NO_THROW(check_record_flags(flags));
  flags = {.input = input, .output = (directory_ / "new").string()};
  EXPECT_NO_THROW(check_record_flags(flags));
  flags = {.input = input, .output = input, .overwrite = true};
  test::expect_error<ConfigError>([&] { check_record_flags(flags); }, {"that --input reads"});
  flags = {.input = input, .output = other};
  test::expect_error<ConfigError>([&] { check_record_flags(flags); }, {"exists", "--overwrite"});
  flags.overwrite = true;
  EXPECT_NO_THROW(check_record_flags(flags));
  flags = {.input = input, .output = write("out.jsonl").string(), .replaces_jsonl = true};
  EXPECT_NO_THROW(check_record_flags(flags));
  flags.output = (directory_ / "absent" / "out.jsonl").string();
  test::expect_error<ConfigError>([&] { check_record_flags(flags); },
                                  {"no such directory", "mkdir -p"});
  flags.input = (directory_ / "absent.jsonl").string();
  test::expect_error([&] { check_record_flags(flags); }, {"no such file", "--input"});
}

/// A subcommand whose flags are parsed.
class Parsed : public ::testing::Test {
 protected:
  CLI::App& parse(const std::vector<std::string>& words) {
    command_ = add_command(sftrun_, "quantize", "", "");
    add_quant_flags(*command_, quant_, "64");
    command_->add_option("--output", output_);
    std::vector<std::string> reversed(words.rbegin(), words.rend());
    reversed.push_back("quantize");
    sftrun_.parse(reversed);
    return *command_;
  }
  CLI::App sftrun_{"", "sftrun"};
  CLI::App* command_ = nullptr;
  QuantRequest quant_;
  std::string output_;
};

TEST_F(Parsed, BlockSizesAreForFormatsWithBlocks) {
  const CLI::App& command = parse({"--block-size", "128"});
  EXPECT_EQ(quant_.block_size, 128);
  EXPECT_NO_THROW(check_quant_flags(command, "--method", "nf4"));
  test::expect_error<ConfigError>([&] { check_quant_flags(command, "--method", "int8"); },
                                  {"--block-size is only for nf4, fp4, but --method is int8"});
}

TEST_F(Parsed, SkippedModulesAreOfQuantisedModels) {
  const CLI::App& command = parse({"--skip-modules", "down_proj"});
  EXPECT_NO_THROW(check_quant_flags(command, "--method", "fp8"));
  test::expect_error<ConfigError>(
      [&] { check_quant_flags(command, "--dtype", "bf16"); },
      {"--skip-modules is only for nf4, fp4, fp8, int8, but --dtype is bf16"});
}

TEST_F(Parsed, FlagsThatExcludeEachOtherAreNamed) {
  const CLI::App& command = parse({"--block-size", "64", "--output", "x"});
  EXPECT_NO_THROW(require_at_most_one(command, {"--block-size", "--no-double-quant"}));
  test::expect_error<ConfigError>(
      [&] {
        require_at_most_one(command, {"--block-size", "--output"});
      },
      {"--block-size and --output cannot be used together"});
}

TEST_F(Parsed, UnknownFlagsAreAnsweredWithTheNearest) {
  test::expect_error<ConfigError>([&] { check_extras(parse({"--blok-size"})); },
                                  {"unknown flag --blok-size", "did you mean --block-size?"});
}

TEST_F(Parsed, WhatIsMissingIsNamedWithTheCommand) {
  const CLI::App& command = parse({});
  test::expect_error<ConfigError>([&] { require(false, command, "--model"); },
                                  {"`sftrun quantize` requires --model", "sftrun quantize --help"});
  test::expect_error<ConfigError>([&] { require_config(command, "", {"configs/run.yaml"}); },
                                  {"requires --config", "write --config configs/run.yaml"});
}

TEST(EngineLocation, AFileThatIsNoLibraryNamesNoDirectories) {
  const test::TemporaryDirectory directory;
  write_file_atomically(directory / "libengine.so", "not an ELF file");
  ::unsetenv("LD_LIBRARY_PATH");
  EXPECT_TRUE(library_directories(directory / "libengine.so").empty());
  ::setenv("LD_LIBRARY_PATH", "$ORIGIN/lib:/opt/lib", 1);
  EXPECT_EQ(library_directories(directory / "libengine.so"),
            (std::vector<fs::path>{directory / "lib", "/opt/lib"}));
  ::unsetenv("LD_LIBRARY_PATH");
}

}  // namespace
}  // namespace sftrun::app
