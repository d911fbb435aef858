#include "run_result.h"

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/units.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/safetensors.h"

namespace sftrun::engine {
namespace fs = std::filesystem;
namespace {

/// An earlier result, of a run that went back to a checkpoint before its end.
void set_aside(const fs::path& target) {
  if (!fs::exists(target)) return;
  fs::path aside;
  for (int number = 1; aside.empty() || fs::exists(aside); ++number)
    aside = fmt::format("{}.old-{}", target.string(), number);
  fs::rename(target, aside);
  log::info("the earlier {} is now {}", target.filename().string(), aside.string());
}

/// Files of the base that was trained on are copied, and of a whole model its frozen weights.
void require_base(const RunResult& result, const fs::path& checkpoint) {
  const fs::path needed =
      fs::is_directory(result.base_path) ? result.base_path / "config.json" : result.base_path;
  if (fs::exists(needed)) return;
  const std::string again = "put the model back and rerun the same command: it resumes from " +
                            checkpoint.string() + " and writes the result";
  throw DataError(
      fmt::format("the base model was removed while the run trained; {} cannot be written",
                  result.adapter ? "the adapter's tokenizer" : "the trained model"),
      needed.string(),
      result.adapter && fs::exists(checkpoint / "adapter_model.safetensors")
          ? again + "; the adapter itself is whole there, in PEFT's layout"
          : again);
}

uint64_t result_bytes(const RunResult& result, uint64_t trained_values) {
  if (result.adapter) return trained_values * sizeof(float);
  uint64_t values = 0;
  for (const weights::TensorInfo& tensor : result.base.tensors())
    values += static_cast<uint64_t>(tensor.numel());
  return values * (result.dtype == at::kFloat ? 4 : 2);
}

}  // namespace

void export_result(const RunResult& result, model::Decoder& decoder, const std::string& card,
                   const fs::path& checkpoint) {
  require_base(result, checkpoint);
  const fs::path temporary =
      result.run_dir / (".unfinished-" + result.target().filename().string());
  std::error_code code;
  fs::remove_all(temporary, code);
  make_directories(temporary);
  if (result.adapter) {
    weights::write_adapter(temporary, *result.adapter, model::adapter_tensors(decoder));
  } else {
    const DType dtype = result.dtype == at::kFloat ? DType::kF32 : DType::kBF16;
    weights::write_sharded_safetensors(temporary,
                                       model::model_tensors(decoder, result.base, dtype));
    model::write_config(result.base, result.base_path, temporary, dtype);
  }
  model::write_text_files(result.base, result.base_path, temporary, result.chat_template);
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

void require_disk_space(const RunResult& result, model::Decoder& decoder,
                        const config::TrainConfig& settings) {
  constexpr uint64_t kSmallFiles = uint64_t{1} << 20;
  const auto values = static_cast<uint64_t>(decoder.parameters().numel());
  uint64_t checkpoint = values * sizeof(float) + kSmallFiles;
  for (const kernels::Parameter& parameter : decoder.parameters().parameters()) {
    checkpoint += static_cast<uint64_t>(
        config::optimizer_state_bytes(settings, parameter.role, parameter.shape_in_files()));
  }
  const uint64_t needed = checkpoint + result_bytes(result, values);
  std::error_code code;
  const fs::space_info space = fs::space(result.run_dir, code);
  if (code) return;  // a file system that does not say
  if (space.available < needed) {
    throw DeviceError(fmt::format("the disk has {} free, and a checkpoint takes {}, the result {}",
                                  format_bytes(space.available), format_bytes(checkpoint),
                                  format_bytes(needed - checkpoint)),
                      result.run_dir.string(), "free disk space, or choose another output.dir");
  }
  if (space.available < needed + checkpoint) {
    log::warn(
        "the disk has {} free: room for one checkpoint of {} and the result, not for a second "
        "checkpoint, which is written before the first is removed",
        format_bytes(space.available), format_bytes(checkpoint));
  }
}

}  // namespace sftrun::engine
