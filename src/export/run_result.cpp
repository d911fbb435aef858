#include "sftrun/export/run_result.h"

#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/images/caps_file.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/gguf_source.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/projectors.h"
#include "sftrun/weights/safetensors.h"
#include "sftrun/weights/score_head.h"

namespace sftrun::exporting {
namespace fs = std::filesystem;
namespace {

/// An earlier result, of a run that went back to a checkpoint before its end.
void set_aside(const fs::path& target) {
  if (!has_entry(target)) return;
  fs::path aside;
  for (int number = 1; aside.empty() || has_entry(aside); ++number)
    aside = fmt::format("{}.old-{}", target.string(), number);
  move_entry(target, aside);
  log::info("the earlier {} is now {}", target.filename().string(), aside.string());
}

/// Files of the base that was trained on are copied, and of a whole model its frozen weights.
void require_base(const RunResult& result, const fs::path& checkpoint) {
  const fs::path needed =
      is_folder(result.base_path) ? result.base_path / "config.json" : result.base_path;
  if (leads_to_file(needed)) return;
  const std::string again = "put the model back and rerun the same command: it resumes from " +
                            checkpoint.string() + " and writes the result";
  throw DataError(
      fmt::format("the base model was removed while the run trained; {} cannot be written",
                  result.adapter ? "the adapter's tokenizer" : "the trained model"),
      needed.string(),
      result.adapter && leads_to_file(checkpoint / "adapter_model.safetensors")
          ? again + "; the adapter is complete there, in PEFT's layout"
          : again);
}

/// Removes a folder at the end of its scope, if it is still there.
struct RemovedFolder {
  const fs::path& path;
  ~RemovedFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

/// Of a whole model's weights.
DType stored_dtype(const RunResult& result) {
  return result.dtype == at::kFloat ? DType::kF32 : DType::kBF16;
}

}  // namespace

void name_base(weights::AdapterConfig& adapter, const config::ModelConfig& model,
               const fs::path& path) {
  const auto source = is_folder(path) ? std::nullopt : weights::source_repository(path);
  adapter.revision = source ? "" : model.revision;
  adapter.base_model_name_or_path = source ? *source
                                    : leads_to_file(model.name)
                                        ? absolute_path(model.name).lexically_normal().string()
                                        : model.name;
}

uint64_t result_bytes(const RunResult& result, uint64_t trained_values) {
  if (result.adapter) return trained_values * sizeof(float);
  uint64_t values = 0;
  for (const weights::TensorInfo& tensor : result.base.tensors())
    values += static_cast<uint64_t>(tensor.numel());
  return values * (result.dtype == at::kFloat ? 4 : 2);
}

std::vector<weights::TensorToWrite> result_tensors(const RunResult& result, model::Decoder& decoder,
                                                   const model::MasterValues& masters) {
  if (result.adapter) return model::adapter_tensors(decoder, masters);
  return model::model_tensors(decoder, result.base, stored_dtype(result), masters);
}

void export_result(const RunResult& result, const std::vector<weights::TensorToWrite>& tensors,
                   const std::string& card, const fs::path& checkpoint) {
  require_base(result, checkpoint);
  const fs::path temporary =
      result.run_dir / (".unfinished-" + result.target().filename().string());
  const RemovedFolder cleanup{temporary};  // also when writing fails
  std::error_code code;
  fs::remove_all(temporary, code);
  make_directories(temporary);
  if (result.adapter) {
    weights::write_adapter(temporary, *result.adapter, tensors);
  } else {
    weights::write_sharded_safetensors(temporary, tensors);
    model::write_config(result.base, result.base_path, temporary, stored_dtype(result));
  }
  model::write_text_files(result.base, result.base_path, temporary, result.chat_template);
  weights::write_template_variables(temporary, result.template_variables);
  images::write_caps(temporary, result.image_caps);
  images::lower_limits(temporary, result.base_path, result.image_caps);
  weights::write_projectors(temporary, result.base.arch().projectors);
  if (result.adapter) weights::write_labels(temporary, result.base.arch());
  if (result.embedding)
    weights::write_embedding_files(temporary, *result.embedding, result.base.arch().hidden_size);
  write_file_atomically(temporary / "README.md", card);
  sync_directory(temporary);
  set_aside(result.target());
  fs::rename(temporary, result.target(), code);
  if (code) {
    throw DeviceError("cannot put the result into place: " + code.message(),
                      result.target().string());
  }
  sync_directory(result.run_dir);
}

}  // namespace sftrun::exporting
