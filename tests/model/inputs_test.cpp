#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sftrun/core/file.h"
#include "sftrun/model/stage.h"
#include "sftrun/weights/safetensors.h"
#include "support/reference.h"
#include "support/tensors.h"

/// Inputs that are more than tokens at positions 0, 1, 2, …: positions on three axes.
namespace sftrun::model {
namespace {

namespace fs = std::filesystem;

fs::path data(const char* path) {
  return fs::path(SFTRUN_TEST_DATA) / path;
}

at::Tensor read(const weights::SafetensorsFile& file, const std::string& name) {
  const weights::SafetensorsEntry& entry = *file.find(name);
  return test::tensor_of(entry, entry.dtype == "I64" ? at::kLong : at::kFloat);
}

std::vector<int32_t> ints(const at::Tensor& values) {
  std::vector<int32_t> result;
  for (int64_t i = 0; i < values.numel(); ++i)
    result.push_back(static_cast<int32_t>(values.flatten()[i].item<int64_t>()));
  return result;
}

/// One document whose labels are the next tokens.
data::Batch document(const std::vector<int32_t>& tokens) {
  data::Batch batch;
  batch.tokens = tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    batch.labels.push_back(i + 1 < tokens.size() ? tokens[i + 1] : data::kIgnoreIndex);
    batch.position_ids.push_back(static_cast<int32_t>(i));
  }
  batch.cu_seqlens = {0, static_cast<int32_t>(tokens.size())};
  batch.document_keys = {0};
  batch.max_seqlen = static_cast<int32_t>(tokens.size());
  batch.label_tokens = static_cast<int64_t>(tokens.size()) - 1;
  return batch;
}

PackedBatch prepared(Decoder& decoder, const data::Batch& batch) {
  return prepare_batch(batch, decoder.rope(), decoder.batch_target(), {});
}

// scripts/fixtures/make_mrope.py: logits, loss and gradients of transformers.
TEST(MultiAxisPositions, EqualTransformers) {
  const weights::SafetensorsFile reference(data("mrope/reference.safetensors"));
  const auto loss = nlohmann::json::parse(read_text_file(data("mrope/reference.json")))["loss"];
  for (const layers::Backend* backend : {&layers::fused_backend(), &layers::plain_backend()}) {
    DecoderOptions options;
    options.trains = Trains::kFull;
    options.backend = backend;
    const auto decoder = Decoder::load(weights::Checkpoint::open(data("mrope")), options);
    data::Batch batch = document(ints(read(reference, "input_ids")));
    batch.rope_positions = ints(read(reference, "positions"));
    const PackedBatch packed = prepared(*decoder, batch);
    EXPECT_TRUE(test::close(Stage(*decoder).logits(packed, at::arange(packed.num_tokens())),
                            read(reference, "logits"), 1e-5));
    const auto labels = static_cast<double>(batch.label_tokens);
    const double sum =
        Stage(*decoder).forward_backward(packed, {.grad_scale = 1 / labels}).item<double>();
    EXPECT_NEAR(sum / labels, loss.get<double>(), 1e-5);
    for (const layers::Parameter& parameter : decoder->parameters().parameters()) {
      const at::Tensor expected = read(reference, "grad." + parameter.name);
      EXPECT_TRUE(test::close(parameter.in_file_order(parameter.grad).reshape(expected.sizes()),
                              expected, 1e-4))
          << parameter.name;
    }
  }
}

// Text has one position on all axes: the same bits as without axes.
TEST(MultiAxisPositions, OfTextAreItsPositions) {
  const auto decoder = Decoder::load(weights::Checkpoint::open(data("mrope")), {});
  data::Batch batch = document({5, 6, 7, 8, 9});
  const at::Tensor expected = Stage(*decoder).token_losses(prepared(*decoder, batch));
  for (int axis = 0; axis < 3; ++axis)
    for (int32_t i = 0; i < 5; ++i) batch.rope_positions.push_back(i);
  EXPECT_TRUE(at::equal(Stage(*decoder).token_losses(prepared(*decoder, batch)), expected));
}

TEST(MultiAxisPositions, SectionsAlternateOrLieSideBySide) {
  spec::RopeSpec rope{.rotary_dim = 16, .sections = {4, 2, 2}, .sections_alternate = true};
  const auto axes = [&] {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < rope.rotary_dim / 2; ++i) all.push_back(rope.axis_of(i));
    return all;
  };
  EXPECT_EQ(axes(), (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0, 0}));
  rope.sections_alternate = false;
  EXPECT_EQ(axes(), (std::vector<int64_t>{0, 0, 0, 0, 1, 1, 2, 2}));
  rope.sections.clear();
  EXPECT_EQ(axes(), std::vector<int64_t>(8, 0));
}

}  // namespace
}  // namespace sftrun::model
