// The optimizers' update beside a copy of memory, by all threads, interleaved: bytes that have to
// move a second, and their share of what the copy moves.
//
//     ninja -C build optimizer_bandwidth && build/bin/optimizer_bandwidth [millions of values]
//     [rounds]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/parameter.h"
#include "sftrun/train/optimizer.h"

namespace {

using namespace sftrun;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Measurement {
  std::string name;
  double bytes = 0;  // read and written
  std::function<void()> work;
  std::vector<double> seconds = {};

  double median() {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

/// One tensor of `n` values with gradients, and its optimizer.
struct Subject {
  Subject(int64_t n, at::ScalarType compute, bool is_8bit) {
    store.add("weight", {n}, 0, true);
    store.allocate(compute, at::kCPU);
    store.grad().normal_();
    optimizer = std::make_unique<train::AdamW>(store, train::AdamWConfig{.is_8bit = is_8bit});
  }
  kernels::ParameterStore store;
  std::unique_ptr<train::AdamW> optimizer;
};

Measurement of_update(Subject& subject, const std::string& name) {
  const auto& store = subject.store;
  const auto n = static_cast<double>(store.numel());
  const bool has_copy = subject.store.compute().scalar_type() != at::kFloat;
  // Value and moments are read and written, the gradient read, the copy written.
  const double bytes =
      n * (3 * 4 + (has_copy ? 2 : 0)) + 2 * static_cast<double>(subject.optimizer->bytes());
  return {name, bytes, [&subject] { subject.optimizer->step(1e-4, 0.5); }};
}

Measurement of_copy(std::vector<float>& from, std::vector<float>& to) {
  return {"copy", 2.0 * static_cast<double>(from.size()) * sizeof(float), [&] {
            at::parallel_for(0, static_cast<int64_t>(from.size()), 1 << 16,
                             [&](int64_t begin, int64_t end) {
                               std::memcpy(to.data() + begin, from.data() + begin,
                                           static_cast<size_t>(end - begin) * sizeof(float));
                             });
          }};
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t n = (argc > 1 ? std::atol(argv[1]) : 32) * 1'000'000;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  if (n <= 0 || rounds <= 0) {
    std::fprintf(stderr, "usage: %s [millions of values] [rounds]\n", argv[0]);
    return 2;
  }
  std::vector<float> from(static_cast<size_t>(2 * n), 1.0F), to(from.size());
  Subject fp32(n, at::kFloat, false), fp32_8bit(n, at::kFloat, true), bf16(n, at::kBFloat16, false),
      bf16_8bit(n, at::kBFloat16, true);
  std::vector<Measurement> all = {
      of_copy(from, to), of_update(fp32, "adamw"), of_update(fp32_8bit, "adamw_8bit"),
      of_update(bf16, "adamw, copy in bf16"), of_update(bf16_8bit, "adamw_8bit, copy in bf16")};
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    for (Measurement& one : all) {
      const double seconds = seconds_of(one.work);
      if (round >= 0) one.seconds.push_back(seconds);
    }
  }
  const double copy_rate = all.front().bytes / all.front().median();
  std::printf("%lld million values, %d threads, %s; medians of %d rounds\n",
              static_cast<long long>(n / 1'000'000), at::get_num_threads(),
              kernels::cpu_kernels().isa, rounds);
  for (Measurement& one : all) {
    const double rate = one.bytes / one.median();
    std::printf("%-26s %6.2f ms  %6.2f GB/s  %3.0f%% of the copy\n", one.name.c_str(),
                1e3 * one.median(), rate / 1e9, 100 * rate / copy_rate);
  }
  return 0;
}
