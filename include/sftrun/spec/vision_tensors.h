#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/model_part.h"
#include "sftrun/spec/arch_spec.h"

/// The tensors of a vision-language model's image side, and the names that files have for those of whole models.
namespace sftrun::spec {

/// The tensors of tower and projector, under transformers 5's module names, in the order in which they compute. Matrices are
/// [out_features, in_features], also patch kernels; `layout` says how files have them. `part` and `unit` are set.
/// @param text_hidden_size of the text model's rows
std::vector<TensorSpec> vision_tensor_specs(const VisionSpec& vision, int64_t text_hidden_size);

/// The part that a tensor of the model belongs to.   @param name in transformers' model
/// @return nullopt for tensors that no part reads: other modalities, layers that predict further tokens
std::optional<ModelPart> part_of(const ArchSpec& arch, std::string_view name);

/// Whether images are computed with this tensor; transformers' models have others, too: layers after the one whose output is used.
bool is_read(const VisionSpec& vision, const TensorSpec& tensor);

/// The weights of linear layers of the image side that can have an adapter.   @param parts in which they are
std::vector<TensorSpec> vision_linears(const ArchSpec& arch, const TrainedParts& parts);

/// Modules that hold a part of the image side and nothing else, for PEFT's `modules_to_save`: as few as possible, without "model." at the
/// beginning. PEFT saves and loads all tensors of such a module, and takes no list of modules ("visual.blocks").
/// LLaVA-NeXT's `image_newline` is in no module, and stays as it is beside LoRA.
/// @throws ConfigError if the model has a module with trained tensors and others
std::vector<std::string> modules_of(const ArchSpec& arch, ModelPart part);

/// A tensor's name in transformers' model for its name in files, which may have the names of earlier versions, or those of the model
/// without its head.   @param arch of a whole model (`ArchSpec::whole_model`)
std::string name_in_whole_model(const ArchSpec& arch, const std::string& stored);

}  // namespace sftrun::spec
