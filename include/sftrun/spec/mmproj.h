#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"

/// llama.cpp's file of a model's image side ("mmproj"), beside the text model's: its metadata and tensors, as the classes of MmprojModel in
/// llama.cpp's convert_hf_to_gguf.py write them, and for CLIP and SigLIP in LLaVA its older convert_image_encoder_to_gguf.py.
namespace sftrun::spec {

/// What the file says of preparing images. llama.cpp resizes in its own way.
struct MmprojImages {
  std::array<double, 3> mean{}, std{};
  int64_t longest_edge =
      0;  ///< pixels to which images are enlarged before they are cut into tiles (Idefics 3); 0: the tile's side
  int64_t image_size =
      0;  ///< `vision_config.image_size` of a tower that takes images of any size; 0: not given
  int64_t min_tiles = 1, max_tiles = 12;  ///< InternVL
};

/// How a tensor of the file is made of one of the model.
enum class MmprojForm : uint8_t {
  kSame,
  kFrame,        ///< the kernel for frame `part` of the patches' convolution
  kThird,        ///< part 0, 1 or 2 of [q; k; v]
  kInterleaved,  ///< rows of each head: the two halves in turn
  kPlanes,       ///< a patch's values (row, column, channel) as (channel, row, column)
  kTransposed,   ///< as the model's files have it: [in_features, out_features]
  kRow,          ///< row `part` alone
};

/// The type of a tensor in a file of F32, F16 or BF16.
enum class MmprojType : uint8_t {
  kFiles,   ///< the file's
  kF32,     ///< always
  kF16,     ///< always
  kKernel,  ///< F16 in a file of F16, else F32
};

struct MmprojTensor {
  std::string name;            ///< "v.blk.0.attn_q.weight"
  std::string source;          ///< its name in transformers' model
  std::vector<int64_t> shape;  ///< slowest dimension first
  MmprojForm form = MmprojForm::kSame;
  int64_t part = 0;
  bool adds_one = false;  ///< Gemma's norm
  MmprojType type = MmprojType::kFiles;
};

struct Mmproj {
  /// What llama.cpp does not read, in words that follow "llama.cpp does not read "; then nothing else is set.
  std::string refused;
  nlohmann::ordered_json metadata;  ///< below "clip."
  std::vector<MmprojTensor> tensors;
};

/// The token whose embedding Pixtral's file holds, because images have it at the end of their rows.
inline constexpr const char* kImageBreak = "[IMG_BREAK]";
/// Whether the file holds it.
bool has_image_break(const ArchSpec& arch);

/// @param image_break the id of `kImageBreak`; nullopt: the tokenizer has none
/// @pre arch.vision
Mmproj describe_mmproj(const ArchSpec& arch, const MmprojImages& images,
                       std::optional<int64_t> image_break);

}  // namespace sftrun::spec
