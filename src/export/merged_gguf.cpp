#include <algorithm>

#include "computed_piece.h"
#include "image_side.h"
#include "merge_writers.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/weights/gguf_export.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/ollama_modelfile.h"

namespace sftrun::exporting {
namespace fs = std::filesystem;
namespace {

weights::GgufPlan plan_file(const MergeOptions& options, const weights::AdapterBase& base,
                            const MergedWeights& merged) {
  return weights::plan_gguf(
      *base.checkpoint,
      {.base_path = options.base,
       .mix = options.dtype,
       .name = name_of_output(options),
       .chat_template = chat_template_of(options),
       .is_changed = [&](const std::string& tensor) { return merged.is_changed(tensor); },
       .unties_head = merged.unties_head(),
       .has_own_tokens = base.text_directory.has_value() || base.is_resized});
}

void write_modelfile(const weights::GgufPlan& plan, const weights::Checkpoint& base,
                     const MergeOptions& options, const fs::path& directory,
                     const std::string& file) {
  weights::OllamaModelfile modelfile = weights::ollama_modelfile(
      base, plan.chat_template, plan.added_bos, template_variables_of(options));
  modelfile.from = "./" + file;
  modelfile.write_to(directory);
}

void write_file(const weights::GgufPlan& plan, const weights::Checkpoint& base,
                MergedWeights& merged, AtomicFile& file) {
  std::vector<weights::GgufTensorToWrite> tensors = plan.beside;
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const weights::GgufPiece& piece = plan.pieces[i];
    const weights::GgmlTypeInfo& type = plan.types[i];
    if (merged.unties_head() && i + 1 == plan.pieces.size()) {
      tensors.push_back(
          computed_piece(piece, type, spec::kHeadTensor, [&] { return merged.head_values(); }));
      continue;
    }
    const weights::TensorInfo& info = base.tensors().at(piece.source);
    const std::span<const std::byte> stored = plan.stored[i];
    if (!stored.empty() && !merged.is_changed(info.name)) {
      tensors.push_back({piece.name, piece.shape, type, [&plan, stored](std::byte* destination) {
                           std::copy(stored.begin(), stored.end(), destination);
                           plan.base->release(stored);
                         }});
    } else {
      tensors.push_back(computed_piece(piece, type, info.name, [&] { return merged.of(info); }));
    }
  }
  weights::write_gguf(file, plan.metadata, tensors);
}

/// Whether some matrices have fewer than 8 bits.
bool is_below_8_bits(const weights::GgufPlan& plan) {
  return std::any_of(plan.types.begin(), plan.types.end(), weights::has_fewer_than_8_bits);
}

/// Whether some of a GGUF base's tensors are stored in another type than there.
bool changes_types(const weights::GgufPlan& plan) {
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const weights::GgufTensor* tensor = plan.base->find(plan.pieces[i].name);
    if (tensor != nullptr && tensor->type.id != plan.types[i].id) return true;
  }
  return false;
}

/// Says which matrices stay F16 although the file type has fewer bits, and corrects `written`.
void note_unquantised(const weights::GgufPlan& plan, const MergeOptions& options,
                      WrittenModel& written) {
  const weights::UnquantisedMatrices left =
      weights::unquantised_matrices(options.dtype, plan.pieces, plan.types);
  if (left.count == 0) return;
  const bool are_all = left.count == left.num_matrices;
  log::warn(
      "{} of {} stored in F16, not in {}, where rows are not whole blocks (a row of {} has {} "
      "values, and the smallest block 32)",
      left.count, counted(left.num_matrices, "matrix"), plan.type_name, left.first, left.row_size);
  if (are_all) written.dtype = "f16";
  written.stored = are_all ? "F16"
                           : fmt::format("{}, {} of {} in F16", plan.type_name, left.count,
                                         counted(left.num_matrices, "matrix"));
}

WrittenModel describe(const weights::GgufPlan& plan, const MergeOptions& options) {
  WrittenModel written{.dtype = ascii_lower(plan.type_name),
                       .stored = plan.type_name,
                       .is_below_8_bits = is_below_8_bits(plan),
                       .in_more_than_base = options.dtype == "auto"};
  note_unquantised(plan, options, written);
  if (!plan.base || options.dtype != "auto") return written;
  written.dtype = "auto";
  written.in_more_than_base = changes_types(plan);
  written.stored = written.in_more_than_base ? "Q8_0 where the adapter changes it" : "as the base";
  return written;
}

}  // namespace

std::string name_of_output(const MergeOptions& options) {
  const fs::path path = absolute_path(options.output).lexically_normal();
  const fs::path name = options.writes_file() ? path.stem()
                        : path.has_filename() ? path.filename()
                                              : path.parent_path().filename();
  return name.empty() ? "model" : name.string();
}

WrittenModel write_gguf_model(const MergeOptions& options, const weights::AdapterBase& base,
                              MergedWeights& merged, const ImageSide* images) {
  const weights::GgufPlan plan = plan_file(options, base, merged);
  WrittenModel written = describe(plan, options);
  written.path = options.output;
  const std::string unread = weights::variables_warning(template_variables_of(options),
                                                        weights::TemplateReader::kLlamaCpp);
  if (!unread.empty()) log::warn("{}", unread);
  if (!base.checkpoint->arch().projectors.empty())
    log::warn("llama.cpp reads no features of other encoders: the file has no projectors");
  const auto write_model = [&](AtomicFile& file) {
    write_file(plan, *base.checkpoint, merged, file);
  };
  const auto write_images = [&](AtomicFile& file) {
    write_image_side(*images, *base.checkpoint, merged, file);
  };
  if (options.writes_file()) {
    if (images) written.images = image_file_beside(options);
    std::vector<NewFile> files = {{options.output, write_model}};
    if (images) files.push_back({*written.images, write_images});
    write_new_files(files, "the merged model", existing_with(options.overwrite));
    return written;
  }
  const std::string name = name_of_output(options),
                    file = fmt::format("{}-{}.gguf", name, plan.type_name);
  write_merged_directory(options, [&](const fs::path& directory) {
    if (images) written.images = images->name_in(name);
    std::vector<NewFile> files = {{directory / file, write_model}};
    if (images) files.push_back({directory / *written.images, write_images});
    write_new_files(files, "the merged model");
    write_modelfile(plan, *base.checkpoint, options, directory, file);
  });
  written.path /= file;
  if (written.images) written.images = options.output / *written.images;
  log::info("Ollama: `ollama create {} -f {}`", name, (options.output / "Modelfile").string());
  return written;
}

}  // namespace sftrun::exporting
