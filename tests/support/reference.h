#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/model/decoder.h"
#include "sftrun/weights/safetensors.h"

/// What transformers computed with a tiny model, as scripts/fixtures/ writes it beside the model.
namespace sftrun::test {

/// Two documents of a fixture and what the reference made of them.
struct Reference {
  std::vector<data::Example> examples;
  std::vector<at::Tensor> logits;
  nlohmann::json json;
};

inline at::Tensor tensor_of(const weights::SafetensorsEntry& entry, at::ScalarType type) {
  return at::from_blob(const_cast<std::byte*>(entry.bytes.data()), entry.shape, type).clone();
}

inline Reference read_reference(const std::filesystem::path& directory) {
  Reference reference;
  const weights::SafetensorsFile file(directory / "reference.safetensors");
  for (int i = 0; file.find("input_ids." + std::to_string(i)) != nullptr; ++i) {
    const at::Tensor ids = tensor_of(*file.find("input_ids." + std::to_string(i)), at::kLong);
    data::Example example;
    for (int64_t t = 0; t < ids.numel(); ++t)
      example.tokens.push_back(static_cast<int32_t>(ids[t].item<int64_t>()));
    example.labels.assign(example.tokens.begin() + 1, example.tokens.end());
    example.labels.push_back(data::kIgnoreIndex);
    example.label_tokens = ids.numel() - 1;
    reference.examples.push_back(example);
    reference.logits.push_back(tensor_of(*file.find("logits." + std::to_string(i)), at::kFloat));
  }
  reference.json = nlohmann::json::parse(read_text_file(directory / "reference.json"));
  return reference;
}

/// The same examples with ids that a smaller vocabulary has.
inline std::vector<data::Example> within_vocabulary(std::vector<data::Example> examples,
                                                    int64_t vocab_size) {
  for (data::Example& example : examples) {
    for (auto* ids : {&example.tokens, &example.labels})
      for (int32_t& id : *ids) id = id < 0 ? id : id % static_cast<int32_t>(vocab_size);
  }
  return examples;
}

inline model::PackedBatch packed(model::Decoder& decoder,
                                 const std::vector<data::Example>& examples,
                                 at::Device device = at::kCPU) {
  std::vector<data::Bin> bins;
  for (size_t i = 0; i < examples.size(); ++i) bins.push_back({static_cast<int64_t>(i)});
  const data::Batch batch = data::make_batch(data::ExampleStore::in_memory(examples), bins, 0,
                                             static_cast<int64_t>(bins.size()));
  model::BatchTarget target(device);
  target.cuts_chunks = decoder.batch_target().cuts_chunks;
  return model::prepare_batch(batch, decoder.rope(), target, {});
}

}  // namespace sftrun::test
