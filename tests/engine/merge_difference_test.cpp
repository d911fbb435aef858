#include "merge_difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/export/merge.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/weights/adapter_file.h"
#include "support/adapter_weights.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::engine {
namespace {

namespace fs = std::filesystem;

/// An adapter of q_proj outside of any run, merged into the tiny model that it is of.
class MergeDifference : public ::testing::Test {
 protected:
  MergeDifference() {
    log::configure({.console = log::Level::kOff, .file = dir_ / "log"});
    base_ = weights::Checkpoint::open(kBase);
    std::vector<weights::TensorToWrite> tensors;
    for (int64_t layer = 0; layer < base_->arch().num_layers; ++layer) {
      const spec::LinearSpec q = spec::layer_linears(base_->arch(), layer)[0];
      const std::string name = spec::name_in_layer(base_->arch(), layer, q.module);
      add(tensors, weights::lora_a_name(name), 2, q.in_features);
      add(tensors, weights::lora_b_name(name), q.out_features, 2);
      module_ = q.module.substr(q.module.rfind('.') + 1);
    }
    fs::create_directories(dir_ / "adapter");
    weights::write_adapter(dir_ / "adapter",
                           {.lora = {.r = 2, .alpha = 8, .target_modules = {module_}}}, tensors);
    write_file_atomically(dir_ / "data.jsonl",
                          "{\"text\": \"Hello you there\"}\n{\"text\": \"the second text\"}\n");
    request_.sample = 2;
    request_.data = (dir_ / "data.jsonl").string();
    request_.device = "cpu";
  }
  ~MergeDifference() override { log::configure({.console = log::Level::kOff}); }

  static void add(std::vector<weights::TensorToWrite>& tensors, const std::string& name,
                  int64_t rows, int64_t columns) {
    tensors.push_back({name, DType::kF32, {rows, columns}, [=](void* out) {
                         const at::Tensor values = test::hashed(name, rows * columns, 3);
                         std::memcpy(out, values.data_ptr<float>(),
                                     static_cast<size_t>(values.numel()) * sizeof(float));
                       }});
  }
  MergedModel merged_into(const fs::path& written) {
    return {.base = base_,
            .base_path = kBase,
            .adapter = dir_ / "adapter",
            .report_directory = dir_.path(),
            .written = written,
            .stored = "fp32"};
  }
  fs::path merge() {
    return exporting::merge({.base = kBase,
                             .output = dir_ / "merged",
                             .adapter = dir_ / "adapter",
                             .dtype = "auto",
                             .format = "safetensors",
                             .max_shard_bytes = 1 << 30})
        .written.path;
  }
  bool log_has(const std::string& part) const {
    return read_text_file(dir_ / "log").find(part) != std::string::npos;
  }

  const fs::path kBase = test::kModels / "tied-gqa";
  test::TemporaryDirectory dir_;
  std::shared_ptr<const weights::Checkpoint> base_;
  std::string module_;
  app::MergeRequest request_;
};

TEST_F(MergeDifference, OfAMergedModelIsNone) {
  const nlohmann::ordered_json report = report_difference(merged_into(merge()), request_);
  ASSERT_FALSE(report.is_null()) << read_text_file(dir_ / "log");
  EXPECT_EQ(report["sequences"], 2);
  EXPECT_GT(report["label_tokens"], 4);
  EXPECT_EQ(report["dtype"], "fp32");
  EXPECT_EQ(report["merged_into"]["model"], kBase.string());
  EXPECT_NEAR(report["loss_adapter"].get<double>(), report["loss_merged"].get<double>(), 1e-4);
  EXPECT_NEAR(report["kl_divergence"].get<double>(), 0, 1e-5);
  EXPECT_EQ(nlohmann::ordered_json::parse(read_text_file(dir_ / "merge_report.json")), report);
  EXPECT_FALSE(log_has("the merged model differs"));
}

TEST_F(MergeDifference, IsSeenWhereTheAdapterIsNotInTheModel) {
  const nlohmann::ordered_json report = report_difference(merged_into(kBase), request_);
  ASSERT_FALSE(report.is_null()) << read_text_file(dir_ / "log");
  EXPECT_GT(report["kl_divergence"].get<double>(), 0.02);
  EXPECT_GT(std::abs(report["loss_adapter"].get<double>() - report["loss_merged"].get<double>()),
            1e-3);
  EXPECT_TRUE(log_has("the merged model differs from base and adapter"));
}

TEST_F(MergeDifference, IsNotMeasuredUnlessThereIsAReason) {
  request_.sample.reset();
  request_.data.reset();
  EXPECT_TRUE(report_difference(merged_into(kBase), request_).is_null());
  EXPECT_TRUE(log_has("the effect of merging was not measured"));
  request_.sample = 0;
  request_.data = "not there.jsonl";
  EXPECT_TRUE(report_difference(merged_into(kBase), request_).is_null());
  EXPECT_FALSE(log_has("not there.jsonl")) << "nothing was read";
  EXPECT_FALSE(fs::exists(dir_ / "merge_report.json"));
}

TEST_F(MergeDifference, AProblemIsAWarning) {
  request_.data = (dir_ / "missing.jsonl").string();
  EXPECT_TRUE(report_difference(merged_into(kBase), request_).is_null());
  EXPECT_TRUE(log_has("missing.jsonl"));
  EXPECT_TRUE(log_has("--sample 0 skips the measurement"));
}

}  // namespace
}  // namespace sftrun::engine
