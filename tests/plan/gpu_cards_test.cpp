#include "sftrun/plan/gpu_cards.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "support/expect_error.h"

namespace sftrun::plan {
namespace {

GpuCards only(const std::string& text) {
  const std::vector<GpuCards> all = parse_gpu_cards(text, "--gpus");
  EXPECT_EQ(all.size(), 1U) << text;
  return all.at(0);
}

struct Named {
  const char *text, *name;
  int64_t count;
};

TEST(GpuCards, NamesAreForgiving) {
  for (const Named& one : std::initializer_list<Named>{
           {"2x RTX4090", "RTX 4090", 2},
           {"2xRTX 4090", "RTX 4090", 2},
           {"2 x rtx-4090", "RTX 4090", 2},
           {"2 × 4090", "RTX 4090", 2},
           {"2*4090", "RTX 4090", 2},
           {"4090", "RTX 4090", 1},
           {"RTX4090 x2", "RTX 4090", 2},
           {"RTX4090x2", "RTX4090x2", 0},  // a sign needs a space or a space after it
           {"4xH200", "H200", 4},
           {"H100-80GB", "H100 80GB", 1},
           {"NVIDIA H100 80GB HBM3", "H100 80GB", 1},
           {"NVIDIA A100-SXM4-40GB", "A100 40GB", 1},
           {"A100", "A100 40GB", 1},  // the smaller one
           {"a100 80 GiB", "A100 80GB", 1},
           {"NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti Super", 1},
           {"4070 Ti", "RTX 4070 Ti", 1},
           {"3060", "RTX 3060 8GB", 1},
           {"RTX 3060 12GB", "RTX 3060 12GB", 1},
           {"Tesla V100-SXM2-32GB", "V100 32GB", 1},
           {"Tesla T4", "T4", 1},
           {"2080Ti", "RTX 2080 Ti", 1},
           {"GTX1080", "GTX 1080", 1},
           {"Quadro RTX 6000", "Quadro RTX 6000", 1},
           {"NVIDIA Quadro RTX A6000", "RTX A6000", 1},
           {"L40S 48GB", "L40S", 1},
           {"NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 1},
           {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell", 1},
           {"16 x B200", "B200", 16}}) {
    if (one.count == 0) {
      EXPECT_THROW(parse_gpu_cards(one.text, "--gpus"), ConfigError) << one.text;
      continue;
    }
    const GpuCards cards = only(one.text);
    EXPECT_EQ(cards.card.name, one.name) << one.text;
    EXPECT_EQ(cards.count, one.count) << one.text;
  }
}

TEST(GpuCards, MemoryInPlaceOfAName) {
  EXPECT_EQ(only("512MB").card.memory_bytes, uint64_t{512} << 20);
  for (const char* text : {"24GB", "24 GiB", "24g", "1x24GB"}) {
    EXPECT_EQ(only(text).card.memory_bytes, uint64_t{24} << 30) << text;
    EXPECT_EQ(only(text).count, 1) << text;
  }
  EXPECT_EQ(only("2x 23.5GiB").card.memory_bytes, uint64_t{47} << 29);
  EXPECT_EQ(only("2x24GiB").count, 2);
}

TEST(GpuCards, SeveralKinds) {
  const std::vector<GpuCards> all = parse_gpu_cards("2x RTX 3090, RTX 4090", "--gpus");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].card.name, "RTX 3090");
  EXPECT_EQ(all[1].count, 1);
}

TEST(GpuCards, CardsOfAmdAreNotSupported) {
  for (const char* text : {"MI300X", "8x AMD Instinct MI250", "Radeon RX 7900", "RX 7900 XTX"})
    test::expect_error<ConfigError>([&] { parse_gpu_cards(text, "--gpus"); },
                                    {"is an AMD GPU, which is not supported", "NVIDIA GPUs"});
}

TEST(GpuCards, UnknownCardsNameTheNearest) {
  test::expect_error<ConfigError>(
      [] { parse_gpu_cards("2x RTX4091", "--gpus"); },
      {"unknown GPU `rtx4091`", "--gpus", "did you mean RTX 4090", "as in 24GB"});
  test::expect_error<ConfigError>(
      [] { parse_gpu_cards("warp drive", "--gpus"); },
      {"unknown GPU `warp drive`", "write its memory, as in 24GB", "H200"});
  for (const char* text : {"0x H100", "999999999999999999999x H100", "H100,", "", "2x", "-3GB",
                           "0GB", "nanGB", "1e9GB", "x", "NVIDIA"}) {
    EXPECT_THROW(parse_gpu_cards(text, "--gpus"), ConfigError) << text;
  }
}

/// Every name of the table means its own card, also as people shorten it.
TEST(GpuCards, EveryNameIsItsOwn) {
  for (const GpuCard& card : known_gpu_cards()) {
    EXPECT_EQ(only(card.name).card.name, card.name);
    EXPECT_EQ(only("8x NVIDIA " + card.name).card.memory_bytes, card.memory_bytes) << card.name;
    EXPECT_GT(card.memory_bytes, uint64_t{card.too_old_sm > 0 ? 1U : 7U} << 30) << card.name;
    EXPECT_LT(card.memory_bytes, uint64_t{300} << 30) << card.name;
  }
}

/// `train` refuses them, by whatever name.
TEST(GpuCards, OldCardsAreRefused) {
  for (const char* text : {"T4",
                           "Tesla T4",
                           "NVIDIA Tesla T4 16GB",
                           "2x t4",
                           "P100",
                           "Tesla P100-PCIE-16GB",
                           "P100-12GB",
                           "V100",
                           "Tesla V100-SXM2-32GB",
                           "v100 16 gb",
                           "V100S-PCIE-32GB",
                           "2080 Ti",
                           "RTX2080Ti",
                           "NVIDIA GeForce RTX 2080 Ti",
                           "GeForce GTX 1080 Ti",
                           "1080ti",
                           "Titan RTX",
                           "NVIDIA TITAN V",
                           "Quadro RTX 8000",
                           "K80",
                           "P40",
                           "2x RTX 4090, T4"}) {
    test::expect_error<ConfigError>(
        [&] { require_usable(parse_gpu_cards(text, "--gpus"), "--gpus"); },
        {"is too old: sm_80 (Ampere) or newer is required", "--gpus", "--device cpu"});
  }
  for (const char* text : {"A100", "RTX A6000", "RTX 6000 Ada", "3060", "L4", "8x H200", "24GB"})
    EXPECT_NO_THROW(require_usable(parse_gpu_cards(text, "--gpus"), "--gpus")) << text;
  test::expect_error<ConfigError>([] { parse_gpu_cards("2x RTX2089", "--gpus"); }, {"unknown GPU"});
}

}  // namespace
}  // namespace sftrun::plan
