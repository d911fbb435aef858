#include "host_memory.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "support/expect_error.h"
#include "support/test_data.h"

namespace sftrun::engine {
namespace {

/// Masters, copies in 16 bits, gradients and two moments.
TEST(HostMemory, OfTrainedWeights) {
  model::DecoderOptions options;
  options.trains = model::Trains::kFull;
  options.dtype = at::kBFloat16;
  const auto decoder =
      model::Decoder::load(weights::Checkpoint::open(test::kModels / "tied-gqa"), options);
  const auto values = static_cast<uint64_t>(decoder->parameters().numel());
  config::TrainConfig settings;
  EXPECT_EQ(trained_host_bytes(*decoder, settings, 1), values * (4 + 2 + 4 + 8));
  EXPECT_EQ(trained_host_bytes(*decoder, settings, 2), values * 9);
  EXPECT_EQ(trained_host_bytes(*decoder, settings, 2, /*keeps_start=*/true), values * (9 + 1))
      << "in the compute dtype";
  settings.optimizer = config::Optimizer::kLion;
  EXPECT_EQ(trained_host_bytes(*decoder, settings, 1), values * (4 + 2 + 4 + 4));
}

TEST(HostMemory, MoreThanIsFreeIsRefused) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  require_host_memory({.needed_bytes = 2 * kGiB, .free_bytes = 2 * kGiB});
  require_host_memory({.needed_bytes = 2 * kGiB, .free_bytes = 0});
  test::expect_error<OutOfMemoryError>(
      [] { require_host_memory({.needed_bytes = 4 * kGiB, .free_bytes = 3 * kGiB}); },
      {"4.00 GiB", "3.00 GiB are free", "parallel.offload.params", "parallel.strategy fsdp"});
}

}  // namespace
}  // namespace sftrun::engine
