#include <nlohmann/json.hpp>
#include <vector>

#include "directory.h"
#include "fuzz.h"
#include "sftrun/weights/adapter_base.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/safetensors.h"

namespace {

using namespace sftrun;

/// As tests/fuzz/run.py's seeds have their base: 4 tokens, 8 channels, a layer.
const fuzz::Directory& base() {
  static const fuzz::Directory directory("base");
  static const bool is_written = [] {
    const nlohmann::json config = {{"model_type", "llama"},      {"vocab_size", 4},
                                   {"hidden_size", 8},           {"intermediate_size", 8},
                                   {"num_hidden_layers", 1},     {"num_attention_heads", 1},
                                   {"num_key_value_heads", 1},   {"max_position_embeddings", 8},
                                   {"tie_word_embeddings", true}};
    directory.write("config.json", config.dump());
    std::vector<weights::TensorToWrite> tensors;
    for (const spec::TensorSpec& spec :
         spec::tensor_specs(spec::ArchSpec::from_hf_config(config, "config.json"))) {
      tensors.push_back({spec.name, DType::kBF16, spec.shape, [count = spec.numel()](void* to) {
                           std::fill_n(static_cast<uint16_t*>(to), count, uint16_t{0x3f80});
                         }});
    }
    weights::write_safetensors(directory.path() / "model.safetensors", tensors);
    return true;
  }();
  (void)is_written;
  return directory;
}

}  // namespace

/// adapter_config.json, a NUL, adapter_model.safetensors: an adapter and what it replaces of a
/// base.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Directory adapter("adapter");
  const auto [config, tensors] = fuzz::both_of(fuzz::text_of(data, size));
  adapter.write("adapter_config.json", config);
  adapter.write("adapter_model.safetensors", tensors);
  fuzz::expecting_errors([&] {
    const weights::AdapterBase opened = weights::open_adapter_base(base().path(), adapter.path());
    const weights::Checkpoint& checkpoint = *opened.checkpoint;
    const auto& arch = checkpoint.arch();
    weights::load_adapter(adapter.path(), weights::load_adapter_config(adapter.path(), arch), arch);
    for (const std::string& name : opened.replaced) {
      std::vector<float> values(static_cast<size_t>(arch.vocab_size * arch.hidden_size));
      checkpoint.read(name, DType::kF32, values.data());
    }
  });
  return 0;
}
