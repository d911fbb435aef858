#include "sftrun/config/base_record.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::config {
namespace {

BaseRecord in_nf4() {
  BaseRecord held{.model = "owner/name", .fingerprint = "ab", .form = "nf4", .dtype = "bf16"};
  held.tuning.quant = quant_of(QuantFormat::kNf4);
  held.tuning.quant_block_size = 128;
  held.tuning.skip_modules = {"down_proj"};
  held.norms = {1.0 / 3, 2e-9};
  held.layout = "cd";
  return held;
}

TEST(BaseRecord, SurvivesTheFile) {
  const test::TemporaryDirectory adapter;
  EXPECT_FALSE(read_base_record(adapter.path()));
  const BaseRecord held = in_nf4();
  write_file_atomically(adapter / kBaseRecordFile, held.to_json().dump());
  const auto read = read_base_record(adapter.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->to_json(), held.to_json());
  EXPECT_EQ(read->tuning.quant_block_size, 128);
  EXPECT_EQ(read->norms, held.norms);
  EXPECT_EQ(read->layout, held.layout);
  EXPECT_FALSE(read->tuning.quant_embeddings);
  EXPECT_FALSE(read->pissa());
  EXPECT_EQ(read->tuning.skip_modules, held.tuning.skip_modules);
}

TEST(BaseRecord, ABrokenLinkIsNoAbsentFile) {
  const test::TemporaryDirectory adapter;
  std::filesystem::create_symlink("../blobs/ab12", adapter / kBaseRecordFile);
  test::expect_error([&] { read_base_record(adapter.path()); },
                     {"a broken symbolic link to ../blobs/ab12", kBaseRecordFile});
}

TEST(BaseRecord, PissaSurvivesTheFile) {
  BaseRecord held = in_nf4();
  held.tuning.lora.init = LoraInit::kPissa;
  EXPECT_TRUE(BaseRecord::from_json(held.to_json(), "sftrun_base.json").pissa());
  nlohmann::ordered_json before = held.to_json();
  before.erase("pissa");  // as it was written once
  before.erase("norms");
  before.erase("layout");
  EXPECT_FALSE(BaseRecord::from_json(before, "sftrun_base.json").pissa());
}

TEST(BaseRecord, DescribesItself) {
  BaseRecord held = in_nf4();
  EXPECT_EQ(held.words(), "nf4 in blocks of 128 with quantised scales");
  held.tuning.double_quant = false;
  EXPECT_EQ(held.words(), "nf4 in blocks of 128");
  held.tuning.quant_embeddings = true;
  EXPECT_EQ(held.words(), "nf4 in blocks of 128, with embedding and head");
  held.tuning.quant_embeddings = false;
  held.form = "int8";
  held.tuning.quant = quant_of(QuantFormat::kInt8);
  EXPECT_EQ(held.words(), "int8");
  held.form = "Q4_1";
  held.tuning.quant = Quant::kAuto;
  EXPECT_EQ(held.words(), "Q4_1, as in the files");
  held.form = "";
  EXPECT_EQ(held.words(), "bf16");
}

/// `sftrun quantize` writes what transformers loads: linear layers.
TEST(BaseRecord, PartsThatStayDenseWhenWritten) {
  TuningConfig tuning = in_nf4().tuning;
  EXPECT_EQ(dense_when_written(tuning, /*has_experts=*/false), "");
  EXPECT_EQ(dense_when_written(tuning, /*has_experts=*/true), "experts");
  tuning.quant_embeddings = false;
  EXPECT_EQ(dense_when_written(tuning, false), "");
  tuning.quant_embeddings = true;
  EXPECT_EQ(dense_when_written(tuning, false), "embedding and head");
  EXPECT_EQ(dense_when_written(tuning, true), "embedding and head, and experts");
}

TEST(BaseRecord, DamageIsNamedByItsKey) {
  using Json = nlohmann::ordered_json;
  const test::TemporaryDirectory adapter;
  const auto expect_damage = [&](const std::string& text, const std::string& reason) {
    write_file_atomically(adapter / kBaseRecordFile, text);
    EXPECT_EQ(test::error_of([&] { read_base_record(adapter.path()); }),
              "error: the file is damaged: " + reason + "\n  at   " +
                  (adapter / kBaseRecordFile).string() +
                  "\n  fix: copy or download the adapter again");
  };
  const auto with = [](const std::string& pointer, const Json& value) {
    Json json = in_nf4().to_json();
    json[Json::json_pointer(pointer)] = value;
    return json.dump();
  };
  const auto without = [](const std::string& key) {
    Json json = in_nf4().to_json();
    if (json.erase(key) == 0) json["tuning"].erase(key);
    return json.dump();
  };
  for (const char* text : {"", "{", "{\"norms\": [1e400"}) expect_damage(text, "not valid JSON");
  expect_damage("[]", "it is not a JSON object");
  expect_damage("{}", "`model` is missing");
  for (const char* key : {"model", "fingerprint", "form", "dtype", "tuning"})
    expect_damage(without(key), fmt::format("`{}` is missing", key));
  for (const char* key :
       {"quant", "double_quant", "quant_block_size", "quant_embeddings", "skip_modules"})
    expect_damage(without(key), fmt::format("`tuning.{}` is missing", key));
  expect_damage(with("/model", 1), "`model` is not a text: 1");
  expect_damage(with("/form", {1}), "`form` is not a text: [1]");
  expect_damage(with("/layout", nullptr), "`layout` is not a text: null");
  expect_damage(with("/pissa", "yes"), "`pissa` is not true or false: \"yes\"");
  expect_damage(with("/norms", 1), "`norms` is not a list of numbers: 1");
  expect_damage(with("/norms/1", "a"), "`norms[1]` is not a finite number: \"a\"");
  std::string large = with("/norms", {1, 2});
  large.replace(large.find("[1,2]"), 5, "[1,1e400]");
  expect_damage(large, "`norms[1]` is not a finite number: Infinity");
  expect_damage(with("/tuning", 1), "`tuning` is not an object: 1");
  expect_damage(with("/tuning/quant", "nf5"),
                "`tuning.quant` is not a value of that setting: \"nf5\"");
  expect_damage(with("/tuning/quant", nullptr),
                "`tuning.quant` is not a value of that setting: null");
  expect_damage(with("/tuning/quant_block_size", "a"),
                "`tuning.quant_block_size` is not a value of that setting: \"a\"");
}

}  // namespace
}  // namespace sftrun::config
