#include "choices.h"
#include "sftrun/config/run_config.h"

namespace sftrun::config {

std::optional<QuantOptions> TuningConfig::quant_options() const {
  const bool is_qloras = quant == Quant::kAuto && mode == TuningMode::kQlora;
  const QuantFormatInfo* info =
      find_quant_format(word_of(is_qloras ? quant_of(QuantFormat::kNf4) : quant));
  if (info == nullptr) return std::nullopt;
  return QuantOptions{.format = info->format,
                      .block_size = quant_block_size,
                      .nested = double_quant && info->can_nest};
}

std::string TuningConfig::quant_name() const {
  const auto options = quant_options();
  return options ? std::string(quant_info(options->format).name) : "";
}

}  // namespace sftrun::config
