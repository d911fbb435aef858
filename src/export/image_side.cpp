#include "image_side.h"

#include "computed_piece.h"
#include "merge_writers.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/core/presence.h"
#include "sftrun/images/processor.h"
#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::exporting {
namespace fs = std::filesystem;
namespace {

fs::path file_beside(const MergeOptions& options) {
  return options.output.parent_path() / ("mmproj-" + options.output.filename().string());
}

spec::MmprojImages described_images(const images::ImageProcessor& processor) {
  return {.mean = processor.image_mean,
          .std = processor.image_std,
          .longest_edge = processor.size.longest_edge,
          .min_tiles = processor.min_patches,
          .max_tiles = processor.max_patches};
}

std::optional<int64_t> image_break_of(const weights::Checkpoint& base) {
  if (!spec::has_image_break(base.arch())) return std::nullopt;
  return base.tokenizer().token_to_id(spec::kImageBreak);
}

}  // namespace

std::string ImageSide::name_in(const std::string& model) const {
  const std::string type = dtype == "f32" ? "F32" : dtype == "bf16" ? "BF16" : "F16";
  return fmt::format("mmproj-{}-{}.gguf", model, type);
}

ImageSide plan_image_side(const MergeOptions& options, const weights::Checkpoint& base) {
  ImageSide side{.dtype = weights::mmproj_dtype(base, options.dtype)};
  try {
    side.plan = weights::plan_mmproj(
        base, {.dtype = side.dtype,
               .name = name_of_output(options),
               .images = described_images(images::read_processor(options.base)),
               .image_break = image_break_of(base)});
  } catch (const DataError& error) {  // of the processor's files: the text model does not need them
    side.plan.refused = fmt::format("{} ({})", error.message(), error.where());
    return side;
  }
  if (!options.writes_file() || !side.plan.refused.empty() || options.overwrite) return side;
  const fs::path file = file_beside(options);
  if (leads_to_file(file)) {
    throw ConfigError("the file of the image side exists", file.string(),
                      "remove it, name another --output, or replace both with --overwrite");
  }
  return side;
}

void write_image_side(const ImageSide& images, const weights::Checkpoint& base,
                      MergedWeights& merged, const fs::path& file) {
  std::vector<weights::GgufTensorToWrite> tensors;
  for (size_t i = 0; i < images.plan.pieces.size(); ++i) {
    const weights::GgufPiece& piece = images.plan.pieces[i];
    const weights::TensorInfo& info = base.tensors().at(piece.source);
    const bool is_bound = info.shape.empty();
    tensors.push_back(computed_piece(
        piece, images.plan.types[i], info.name, [&merged, &info] { return merged.of(info); },
        is_bound));
  }
  make_directories(absolute_path(file).parent_path());
  weights::write_gguf(file, images.plan.metadata, tensors);
}

fs::path write_image_side_beside(const ImageSide& images, const MergeOptions& options,
                                 const weights::Checkpoint& base, MergedWeights& merged) {
  const fs::path beside = file_beside(options);
  write_new_file(
      beside, "the image side of the merged model",
      [&](const fs::path& file) { write_image_side(images, base, merged, file); },
      existing_with(options.overwrite));
  return beside;
}

}  // namespace sftrun::exporting
