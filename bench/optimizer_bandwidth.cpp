// The optimizers' update beside a copy of memory.
//
//     ninja -C build optimizer_bandwidth && build/bin/optimizer_bandwidth [millions of values]
//     [rounds]
#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "bandwidth.h"
#include "sftrun/layers/parameter.h"
#include "sftrun/train/adamw.h"

namespace {

using namespace sftrun;

/// One tensor of `n` values with gradients, and its optimizer.
struct Subject {
  Subject(int64_t n, at::ScalarType compute, bool is_8bit) {
    store.add("weight", {n}, 0, true);
    store.allocate(compute, at::kCPU);
    store.grad().normal_();
    optimizer = std::make_unique<train::AdamW>(store, train::AdamWConfig{.is_8bit = is_8bit});
  }
  layers::ParameterStore store;
  std::unique_ptr<train::AdamW> optimizer;
};

bench::Measurement of_update(Subject& subject, const std::string& name) {
  const auto& store = subject.store;
  const auto n = static_cast<double>(store.numel());
  const bool has_copy = subject.store.compute().scalar_type() != at::kFloat;
  // Value and moments are read and written, the gradient read, the copy written.
  const double bytes =
      n * (3 * 4 + (has_copy ? 2 : 0)) + 2 * static_cast<double>(subject.optimizer->bytes());
  return {name, bytes, [&subject] { subject.optimizer->step(1e-4, 0.5); }};
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments = bench::arguments_of(argc, argv, 32);
  const int64_t n = arguments.values;
  std::vector<float> from(static_cast<size_t>(2 * n), 1.0F), to(from.size());
  Subject fp32(n, at::kFloat, false), fp32_8bit(n, at::kFloat, true), bf16(n, at::kBFloat16, false),
      bf16_8bit(n, at::kBFloat16, true);
  bench::measure(
      {bench::of_copy(from, to), of_update(fp32, "adamw"), of_update(fp32_8bit, "adamw_8bit"),
       of_update(bf16, "adamw, copy in bf16"), of_update(bf16_8bit, "adamw_8bit, copy in bf16")},
      arguments);
  return 0;
}
