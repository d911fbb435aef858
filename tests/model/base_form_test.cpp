#include "sftrun/model/base_form.h"

#include <gtest/gtest.h>

#include <fstream>

#include "sftrun/core/log.h"
#include "sftrun/weights/fingerprint.h"
#include "sftrun/weights/weights_summary.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::model {
namespace {

std::shared_ptr<const weights::Checkpoint> model_of(const char* name) {
  return weights::Checkpoint::open(test::kModels / name);
}

config::TuningConfig tuning_of(config::Quant quant) {
  config::TuningConfig tuning;
  tuning.mode = config::TuningMode::kQlora;
  tuning.quant = quant;
  return tuning;
}

TEST(BaseForm, OfADenseModelIsTheConfigurations) {
  const auto dense = model_of("tied-gqa");
  const BaseForm nf4 = base_form(tuning_of(config::quant_of(QuantFormat::kNf4)), dense.get());
  ASSERT_TRUE(nf4.quant);
  EXPECT_EQ(nf4.quant->format, QuantFormat::kNf4);
  EXPECT_EQ(stored_base_form(tuning_of(config::quant_of(QuantFormat::kNf4)), *dense), "nf4");
  EXPECT_FALSE(base_form(tuning_of(config::Quant::kNone), dense.get()).quant);
  EXPECT_EQ(stored_base_form(tuning_of(config::Quant::kNone), *dense), "");
  EXPECT_EQ(weights::packed_format(*dense), "");
}

TEST(BaseForm, OfAQuantisedModelIsItsFiles) {
  const auto stored = model_of("bnb-fp4");
  const config::TuningConfig tuning = tuning_of(config::Quant::kStored);
  const BaseForm form = base_form(tuning, stored.get());
  EXPECT_TRUE(form.keep_stored);
  EXPECT_FALSE(form.quant);
  EXPECT_EQ(stored_base_form(tuning, *stored), weights::packed_format(*stored));
  EXPECT_FALSE(weights::packed_format(*stored).empty());
  EXPECT_THROW(base_form(tuning_of(config::Quant::kGguf), stored.get()), ConfigError);
}

/// What is written beside an adapter holds for the base that it was trained with, and no other.
TEST(BaseRecord, IsRecognisedByTheBasesFingerprint) {
  log::configure({.console = log::Level::kOff});
  const test::TemporaryDirectory adapter;
  const auto base = model_of("tied-gqa");
  config::RunConfig config;
  config.model.name = "owner/model";
  config.tuning = tuning_of(config::quant_of(QuantFormat::kNf4));
  const std::string fingerprint =
      weights::fingerprint(*base, weights::hash_weights(*base, FileHashes({})));
  config::BaseRecord held = base_record(config, "fp32", *base, fingerprint);
  EXPECT_EQ(held.form, "nf4");
  EXPECT_EQ(held.tuning.mode, config::TuningMode::kLora);
  const auto write = [&] {
    std::ofstream(adapter / config::kBaseRecordFile) << held.to_json().dump();
  };
  EXPECT_FALSE(quantised_by_run(adapter.path(), *base)) << "the adapter does not say";
  write();
  ASSERT_TRUE(quantised_by_run(adapter.path(), *base));
  EXPECT_EQ(quantised_by_run(adapter.path(), *base)->form, "nf4");
  EXPECT_FALSE(quantised_by_run(adapter.path(), *model_of("bnb-nf4")));
  held.tuning.lora.init = config::LoraInit::kPissa;
  write();
  EXPECT_FALSE(quantised_by_run(adapter.path(), *base)) << "what PiSSA left is not kept";
}

}  // namespace
}  // namespace sftrun::model
