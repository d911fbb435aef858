#include "../../src/kernels/attention/attention_choice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../../src/kernels/attention/cudnn_attention.h"

namespace sftrun::kernels {
namespace {

constexpr CudnnCard kH100{90, 91900};
constexpr EqualDocuments kFour{4, 2048};
const AttentionShape kQwen3{.num_heads = 16,
                            .num_kv_heads = 8,
                            .head_dim = 128,
                            .scale = 0.088388347648318447,
                            .on_cuda = CudaAttention::kCudnn};

TEST(EqualDocuments, HaveOneLength) {
  const auto of = [](const std::vector<int32_t>& ends) {
    const EqualDocuments found = equal_documents(ends);
    return std::pair(found.count, found.length);
  };
  EXPECT_EQ(of({0, 128}), std::pair(int64_t{1}, int64_t{128}));
  EXPECT_EQ(of({0, 128, 256, 384}), std::pair(int64_t{3}, int64_t{128}));
  EXPECT_EQ(of({0, 128, 255}).first, 0);
  EXPECT_EQ(of({0, 127, 255}).first, 0);
  EXPECT_EQ(of({0, 0}).first, 0) << "an empty document";
  EXPECT_EQ(of({0, 128, 128}).first, 0) << "an empty document at the end";
  EXPECT_EQ(of({0}).first, 0);
  EXPECT_EQ(of({}).first, 0);
}

TEST(FlashAttention, HasHeadsItsBackwardPassRefusesOnSomeCards) {
  for (const int capability : {86, 89, 120, 121})
    for (const auto& [head_dim, runs] :
         {std::pair(192, true), {200, false}, {224, false}, {232, true}, {256, true}})
      EXPECT_EQ(flash_runs_backward(head_dim, capability), runs) << head_dim << ' ' << capability;
  for (const int capability : {80, 90, 100, 103}) EXPECT_TRUE(flash_runs_backward(208, capability));
}

TEST(CudnnAttention, ServesQwen3OnHopperAndBlackwell) {
  for (const int capability : {90, 100, 103})
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
      EXPECT_EQ(why_not_cudnn(kQwen3, dtype, kFour, {capability, 91900}), "");
}

TEST(CudnnAttention, RefusesCardsAndVersions) {
  for (const int capability : {75, 80, 86, 89, 110, 120, 121})
    EXPECT_NE(why_not_cudnn(kQwen3, at::kBFloat16, kFour, {capability, 91900}), "") << capability;
  EXPECT_EQ(why_not_cudnn(kQwen3, at::kBFloat16, kFour, {90, 91200}),
            "cuDNN 9.12.0 is older than 9.15.0");
  EXPECT_NE(why_not_cudnn(kQwen3, at::kBFloat16, kFour, {90, 0}), "") << "no cuDNN";
}

TEST(CudnnAttention, RefusesTypesHeadsAndMasks) {
  const auto why = [](auto change, const CudnnCard& card = kH100) {
    AttentionShape shape = kQwen3;
    change(shape);
    return why_not_cudnn(shape, at::kBFloat16, kFour, card);
  };
  EXPECT_NE(why_not_cudnn(kQwen3, at::kFloat, kFour, kH100), "");
  EXPECT_NE(why([](AttentionShape& shape) { shape.softcap = 50; }), "");
  EXPECT_NE(why([](AttentionShape& shape) { shape.head_dim = 20; }), "");
  EXPECT_NE(why([](AttentionShape& shape) { shape.head_dim = 264; }), "");
  const auto gemma = [](AttentionShape& shape) { shape.head_dim = 256; };
  EXPECT_EQ(why(gemma), "") << "on Hopper";
  EXPECT_NE(why(gemma, {100, 91900}), "") << "on Blackwell";
  EXPECT_NE(why([](AttentionShape& shape) { shape.window = 2047; }), "");
  EXPECT_EQ(why([](AttentionShape& shape) { shape.window = 2048; }), "")
      << "a window that hides nothing";
}

TEST(CudnnAttention, RefusesLengths) {
  EXPECT_NE(why_not_cudnn(kQwen3, at::kBFloat16, {}, kH100), "") << "different lengths";
  for (const int64_t length : {1, 64, 127, 129, 192, 2047})
    EXPECT_NE(why_not_cudnn(kQwen3, at::kBFloat16, {1, length}, kH100), "") << length;
  EXPECT_EQ(why_not_cudnn(kQwen3, at::kBFloat16, {1, 128}, kH100), "");
}

TEST(CudnnAttention, AutoTakesItWhereItWasMeasured) {
  AttentionShape shape = kQwen3;
  shape.on_cuda = CudaAttention::kAuto;
  const auto why = [&](const EqualDocuments& documents, int capability) {
    return why_not_cudnn(shape, at::kBFloat16, documents, {capability, 91900});
  };
  EXPECT_EQ(why({1, 1024}, 90), "");
  EXPECT_NE(why({16, 896}, 90), "") << "short documents";
  EXPECT_NE(why({1, 1100}, 90), "") << "partly filled tiles";
  EXPECT_NE(why({}, 90), "") << "different lengths";
  for (const int capability : {80, 89, 100, 103, 120})
    EXPECT_NE(why({1, 2048}, capability), "") << capability;
}

// ---- The choice, of trials that are given.
AttentionClass class_of(CudaAttention setting, int64_t length = 2048) {
  return {setting, 0, at::kBFloat16, 4, length, 16, 8, 128, {2048, 1024, 1024}};
}

TEST(AttentionChoices, MeasureTakesTheFasterOfEachShapeAndTriesOnce) {
  AttentionChoices choices;
  int trials = 0;
  const auto trial_of = [&](double flash_ms, double cudnn_ms) {
    return [&trials, flash_ms, cudnn_ms] {
      ++trials;
      return AttentionTrial{flash_ms, cudnn_ms, 0.003};
    };
  };
  const AttentionClass long_one = class_of(CudaAttention::kMeasure),
                       short_one = class_of(CudaAttention::kMeasure, 128);
  EXPECT_TRUE(choices.takes_cudnn(long_one, trial_of(2, 1)));
  EXPECT_FALSE(choices.takes_cudnn(short_one, trial_of(1, 1))) << "not faster";
  EXPECT_TRUE(choices.takes_cudnn(long_one, trial_of(1, 2))) << "the first trial decides";
  EXPECT_FALSE(choices.takes_cudnn(short_one, trial_of(2, 1)));
  EXPECT_EQ(trials, 2);
}

TEST(AttentionChoices, CudnnIsTakenWhateverItsSpeed) {
  AttentionChoices choices;
  for (const CudaAttention setting : {CudaAttention::kCudnn, CudaAttention::kAuto}) {
    EXPECT_TRUE(choices.takes_cudnn(class_of(setting), [] { return AttentionTrial{1, 2, 0.003}; }));
  }
}

TEST(AttentionChoices, OtherResultsAreNotTaken) {
  const double most = max_difference(at::kBFloat16);
  EXPECT_GT(most, 0.01);
  EXPECT_LT(most, 0.05);
  EXPECT_LT(max_difference(at::kHalf), most);
  for (const double difference : {1.01 * most, std::nan(""), HUGE_VAL}) {
    AttentionChoices choices;
    EXPECT_FALSE(choices.takes_cudnn(class_of(CudaAttention::kCudnn), [&] {
      return AttentionTrial{2, 1, difference};
    })) << difference;
  }
}

TEST(AttentionChoices, AFailureIsNotTriedAgain) {
  AttentionChoices choices;
  int trials = 0;
  const auto fails = [&]() -> AttentionTrial {
    ++trials;
    TORCH_CHECK(false, "No valid execution plans built.");
  };
  EXPECT_FALSE(choices.takes_cudnn(class_of(CudaAttention::kCudnn), fails));
  EXPECT_FALSE(choices.takes_cudnn(class_of(CudaAttention::kCudnn), fails));
  EXPECT_EQ(trials, 1) << "LibTorch would run the plan that it failed to build";
}

TEST(AttentionChoices, MeasureTriesSoManyShapesAndCudnnAll) {
  AttentionChoices choices;
  size_t trials = 0;
  const auto faster = [&] {
    ++trials;
    return AttentionTrial{2, 1, 0.003};
  };
  const size_t more = AttentionChoices::kMaxMeasured + 3;
  for (size_t i = 0; i < more; ++i) {
    const auto length = static_cast<int64_t>(128 * (i + 1));
    EXPECT_EQ(choices.takes_cudnn(class_of(CudaAttention::kMeasure, length), faster),
              i < AttentionChoices::kMaxMeasured);
  }
  EXPECT_EQ(trials, AttentionChoices::kMaxMeasured);
  EXPECT_TRUE(choices.takes_cudnn(class_of(CudaAttention::kCudnn), faster));
}

}  // namespace
}  // namespace sftrun::kernels
