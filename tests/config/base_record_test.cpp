#include "sftrun/config/base_record.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
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

TEST(BaseRecord, OtherFilesAreErrors) {
  const test::TemporaryDirectory adapter;
  nlohmann::ordered_json unknown = in_nf4().to_json();
  unknown["tuning"]["quant"] = "nf5";
  for (const std::string text : {"", "[]", "{}", "{\"tuning\": 1}"}) {
    write_file_atomically(adapter / kBaseRecordFile, text);
    EXPECT_THROW(read_base_record(adapter.path()), DataError) << text;
  }
  write_file_atomically(adapter / kBaseRecordFile, unknown.dump());
  EXPECT_THROW(read_base_record(adapter.path()), DataError);
}

}  // namespace
}  // namespace sftrun::config
