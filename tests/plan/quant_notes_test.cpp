#include "sftrun/plan/quant_notes.h"

#include <gtest/gtest.h>

namespace sftrun::plan {
namespace {

TEST(QuantNotes, NamesKeysWithoutEffect) {
  config::TuningConfig tuning;
  tuning.mode = config::TuningMode::kQlora;
  EXPECT_EQ(idle_quant_keys(tuning, false), "");
  tuning.quant_block_size = 128;
  tuning.double_quant = false;
  tuning.quant_embeddings = true;
  tuning.skip_modules = {"down_proj"};
  EXPECT_EQ(idle_quant_keys(tuning, false), "");
  EXPECT_EQ(idle_quant_keys(tuning, true),
            "tuning.double_quant, tuning.quant_block_size, tuning.quant_embeddings change nothing: "
            "the base keeps its stored format (tuning.quant)");
  tuning.quant = config::quant_of(QuantFormat::kInt8);
  EXPECT_EQ(idle_quant_keys(tuning, false),
            "tuning.double_quant, tuning.quant_block_size change nothing: int8 has one scale "
            "per row");
  tuning = {};
  tuning.skip_modules = {"down_proj"};
  EXPECT_EQ(idle_quant_keys(tuning, false),
            "tuning.skip_modules changes nothing: the base is not quantised (tuning.quant)");
  EXPECT_EQ(idle_quant_keys(tuning, true), "");
  tuning.quant_embeddings = false;  // unpacks the embedding that the file has in blocks
  EXPECT_EQ(idle_quant_keys(tuning, true), "");
}

}  // namespace
}  // namespace sftrun::plan
