#include "sftrun/plan/optimizer_notes.h"

#include <gtest/gtest.h>

namespace sftrun::plan {
namespace {

spec::ArchSpec two_layers() {
  spec::ArchSpec arch;
  arch.family = "llama";
  arch.vocab_size = 64, arch.hidden_size = 16, arch.intermediate_size = 32;
  arch.num_layers = 2;
  arch.layers.resize(2);
  arch.num_heads = 2, arch.num_kv_heads = 2, arch.head_dim = 8;
  return arch;
}

config::RunConfig partial(std::vector<std::string> trainable) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kPartial;
  config.tuning.trainable = std::move(trainable);
  config.train.optimizer = config::Optimizer::kMuon;
  config.train.adam_beta1 = 0.8;
  config.train.nesterov = false;
  config.train.momentum = 0.95;  // the default, as a resolved run has it
  return config;
}

TEST(OptimizerNotes, NamesKeysOfAGroupWithoutParameters) {
  const spec::ArchSpec arch = two_layers();
  EXPECT_EQ(idle_optimizer_keys(partial({"mlp"}), arch),
            "train.adam_beta1 changes nothing: tuning.trainable selects only matrices, which muon "
            "updates without AdamW");
  EXPECT_EQ(idle_optimizer_keys(partial({"norm"}), arch),
            "train.nesterov changes nothing: tuning.trainable selects no matrices, and muon "
            "updates other tensors with AdamW");
  EXPECT_EQ(idle_optimizer_keys(partial({"mlp", "norm"}), arch), "");
  config::RunConfig other = partial({"mlp"});
  other.train.optimizer = config::Optimizer::kAdamW;
  EXPECT_EQ(idle_optimizer_keys(other, arch), "");
  other = partial({"mlp"});
  other.tuning.mode = config::TuningMode::kFull;
  EXPECT_EQ(idle_optimizer_keys(other, arch), "");
}

}  // namespace
}  // namespace sftrun::plan
