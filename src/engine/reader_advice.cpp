#include "reader_advice.h"

#include <algorithm>

#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/adapter_readers.h"
#include "sftrun/weights/vllm_adapter.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::engine {

std::set<std::string> adapted_modules(model::Decoder& decoder) {
  std::set<std::string> adapted;
  if (decoder.embedding().lora) adapted.insert(spec::embedding_module(decoder.arch()));
  for (const layers::Linear* linear : decoder.adapted_linears()) adapted.insert(linear->name);
  for (model::Layer& layer : decoder.layers()) {
    for (const layers::ExpertMatrix* matrix : layer.experts()) {
      if (matrix->lora) adapted.insert(matrix->name);
    }
  }
  return adapted;
}

void log_vllm_advice(model::Decoder& decoder) {
  const auto config = model::adapter_config_of(decoder, "");
  const std::set<std::string> adapted = adapted_modules(decoder);
  const auto advice =
      weights::vllm_advice(config.lora, !config.lora.modules_to_save.empty(), decoder.arch(),
                           [&](const std::string& module) { return adapted.contains(module); });
  if (!advice) return;
  advice->is_warning ? log::warn("{}", advice->text) : log::info("{}", advice->text);
}

bool is_stored_in(const weights::Checkpoint& base, const std::string& format) {
  const auto& tensors = base.tensors();
  return std::any_of(tensors.begin(), tensors.end(), [&](const weights::TensorInfo& tensor) {
    return ascii_lower(tensor.format) == format && base.packed(tensor.name);
  });
}

std::string unwritten_because(const config::BaseRecord& base_record,
                              const weights::Checkpoint& base) {
  if (!quant_info(base_record.tuning.quant_options()->format).is_written())
    return "no file has this format";
  const std::string stored = weights::packed_format(base);
  return stored.empty() ? "" : fmt::format("its files are already quantised ({})", stored);
}

std::vector<std::string> reader_lines(const weights::AdapterConfig& config,
                                      const std::set<std::string>& adapted,
                                      const config::BaseRecord& base_record,
                                      const weights::Checkpoint& base,
                                      const std::filesystem::path& base_path,
                                      const std::filesystem::path& directory, bool embeds) {
  weights::WrittenAdapter written{
      config, base.arch(), base_path, directory,
      [&](const std::string& module) { return adapted.contains(module); }};
  if (base_record.tuning.quantises_base() && !is_stored_in(base, base_record.form)) {
    written.quantised_to = base_record.tuning.quant_name();
    written.unwritten_because = unwritten_because(base_record, base);
    if (written.unwritten_because.empty())
      written.quantize_command = config::quantize_command(base_record.tuning, base_path.string());
    written.dense_when_written =
        config::dense_when_written(base_record.tuning, base.arch().mixture.num_experts > 0);
  }
  written.uses_pissa = base_record.pissa();
  written.embeds = embeds;
  return weights::reader_support(written);
}

}  // namespace sftrun::engine
