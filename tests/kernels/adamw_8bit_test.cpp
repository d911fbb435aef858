#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "../../src/kernels/cuda/algorithms.h"
#include "sftrun/kernels/dynamic_map.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/weights/safetensors.h"
#include "support/tensors.h"

// Whole steps against bitsandbytes are in tests/train/optimizers_test.cpp.
namespace sftrun::kernels {
namespace {

TEST(DynamicMap, ValuesAreBitsandbytes) {
  const weights::SafetensorsFile file(std::filesystem::path(SFTRUN_TEST_DATA) / "adamw_8bit" /
                                      "run.safetensors");
  for (const bool is_signed : {true, false}) {
    const auto* entry = file.find(is_signed ? "signed_map" : "unsigned_map");
    ASSERT_NE(entry, nullptr);
    const at::Tensor& values = dynamic_map(is_signed).values;
    ASSERT_EQ(entry->bytes.size(), values.nbytes());
    EXPECT_EQ(std::memcmp(entry->bytes.data(), values.const_data_ptr(), values.nbytes()), 0);
  }
}

TEST(DynamicMap, CodesAreNearestAndTheTreeHoldsThem) {
  for (const bool is_signed : {true, false}) {
    const DynamicMap& map = dynamic_map(is_signed);
    const auto* values = map.values.const_data_ptr<float>();
    const auto* codes = map.codes.const_data_ptr<uint8_t>();
    const auto* tree = static_cast<const uint16_t*>(map.tree.const_data_ptr());
    ASSERT_EQ(map.codes.numel(), kStateSteps);
    ASSERT_EQ(map.tree.numel(), kStateTree);
    for (int64_t step = 0; step < kStateSteps; ++step) {
      const double x = 2.0 * static_cast<double>(step) / (kStateSteps - 1) - 1.0;
      double least = 2;
      for (int code = 0; code < 256; ++code) least = std::min(least, std::abs(x - values[code]));
      ASSERT_NEAR(std::abs(x - values[codes[step]]), least, 1e-7) << step;
      int64_t searched = 0;
      for (int64_t level = 0; level < 8; ++level) {
        const int64_t at = (level < 7 ? 32 * level : 256) + searched;
        searched = 2 * searched + (step >= tree[at] ? 1 : 0);
      }
      ASSERT_EQ(searched, codes[step]) << step;
    }
  }
}

/// A parameter with moments of some steps before; what one more makes of it.
struct Block {
  explicit Block(int64_t n, uint64_t seed)
      : param(test::normal({n}, seed)), grad(test::normal({n}, seed + 1)) {
    grad.narrow(0, n / 3, n / 4).zero_();
    const at::Tensor sizes = test::normal({n}, seed + 2).mul_(3).exp_();
    grad.mul_(sizes);
    exp_avg = at::arange(n).mul_(37).remainder_(256).to(at::kByte);
    exp_avg_sq = at::arange(n).mul_(101).remainder_(256).to(at::kByte);
    compute = at::zeros({n}, at::kBFloat16);
  }
  at::Tensor param, grad, exp_avg, exp_avg_sq, compute;
  float exp_avg_absmax = 0.7F, exp_avg_sq_absmax = 3.1F;

  void step(const CpuKernels& kernels) {
    const StateBlock state{exp_avg.data_ptr<uint8_t>(), exp_avg_sq.data_ptr<uint8_t>(),
                           &exp_avg_absmax, &exp_avg_sq_absmax};
    kernels.adamw_8bit(param.data_ptr<float>(), grad.data_ptr<float>(), state,
                       static_cast<uint16_t*>(compute.data_ptr()), param.numel(), map(true),
                       map(false), kParams);
  }
  static StateMap map(bool is_signed) {
    const DynamicMap& of = dynamic_map(is_signed);
    return {of.values.const_data_ptr<float>(), of.codes.const_data_ptr<uint8_t>(),
            static_cast<const uint16_t*>(of.tree.const_data_ptr())};
  }
  static constexpr AdamW8bitParams kParams = {.beta1 = 0.9F,
                                              .one_minus_beta1 = 0.1F,
                                              .beta2 = 0.999F,
                                              .one_minus_beta2 = 0.001F,
                                              .epsilon = 1e-8F,
                                              .step_size = -3e-3F,
                                              .decay = 0.9995F,
                                              .sqrt_bias_correction2 = 0.0893F,
                                              .grad_scale = 0.37F};
};

constexpr int64_t kCounts[] = {1, 15, 16, 17, 31, 33, 37, 100, 255, 256};

TEST(AdamW8bitKernel, EveryInstructionSetGivesTheSameBits) {
  for (const int64_t n : kCounts) {
    Block expected(n, 40);
    for (int step = 0; step < 3; ++step) expected.step(*cpu_kernels_by_name("generic"));
    EXPECT_TRUE(at::equal(expected.compute, expected.param.to(at::kBFloat16)));
    for (const char* isa : {"avx2", "avx512"}) {
      const CpuKernels* kernels = cpu_kernels_by_name(isa);
      if (kernels == nullptr) continue;
      SCOPED_TRACE(std::string(isa) + ", " + std::to_string(n) + " values");
      Block block(n, 40);
      for (int step = 0; step < 3; ++step) block.step(*kernels);
      EXPECT_TRUE(test::same_bits(block.param, expected.param));
      EXPECT_TRUE(test::same_bits(block.compute, expected.compute));
      EXPECT_TRUE(test::same_bits(block.exp_avg, expected.exp_avg));
      EXPECT_TRUE(test::same_bits(block.exp_avg_sq, expected.exp_avg_sq));
      EXPECT_EQ(block.exp_avg_absmax, expected.exp_avg_absmax);
      EXPECT_EQ(block.exp_avg_sq_absmax, expected.exp_avg_sq_absmax);
    }
  }
}

/// What the CUDA kernel does to one element, on the host.
TEST(AdamW8bitKernel, CudasElementsAreTheCpusBitForBit) {
  for (const int64_t n : kCounts) {
    Block cpu(n, 50), gpu(n, 50);
    cpu.step(cpu_kernels());
    const StateMap signed_map = Block::map(true), unsigned_map = Block::map(false);
    std::vector<cuda::AdamWElement> elements;
    float m_largest = 0, v_largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      const cuda::AdamWElement before{
          gpu.param.data_ptr<float>()[i],
          signed_map.values[gpu.exp_avg.data_ptr<uint8_t>()[i]] * gpu.exp_avg_absmax,
          unsigned_map.values[gpu.exp_avg_sq.data_ptr<uint8_t>()[i]] * gpu.exp_avg_sq_absmax};
      elements.push_back(
          cuda::adamw_8bit_element(before, gpu.grad.data_ptr<float>()[i], Block::kParams));
      m_largest = std::max(m_largest, std::abs(elements.back().exp_avg));
      v_largest = std::max(v_largest, elements.back().exp_avg_sq);
    }
    EXPECT_EQ(m_largest, cpu.exp_avg_absmax);
    EXPECT_EQ(v_largest, cpu.exp_avg_sq_absmax);
    for (int64_t i = 0; i < n; ++i) {
      const cuda::AdamWElement& e = elements[static_cast<size_t>(i)];
      ASSERT_EQ(e.param, cpu.param.data_ptr<float>()[i]) << i << " of " << n;
      ASSERT_EQ(signed_map.codes[cuda::state_place(e.exp_avg, 1.0F / m_largest)],
                cpu.exp_avg.data_ptr<uint8_t>()[i]);
      ASSERT_EQ(unsigned_map.codes[cuda::state_place(e.exp_avg_sq, 1.0F / v_largest)],
                cpu.exp_avg_sq.data_ptr<uint8_t>()[i]);
    }
  }
}

}  // namespace
}  // namespace sftrun::kernels
