#pragma once

#include <optional>
#include <string>

#include "tokenizer_files.h"

/// The normalizers and pre-tokenizers of transformers' tokenizer classes.
namespace sftrun::tokenizer {

struct ClassSections {
  Json normalizer, pre_tokenizer;  ///< sections of a tokenizer.json
};

/// @param name without "Fast"   @returns nullopt for an unknown class
std::optional<ClassSections> sections_of_class(const std::string& name,
                                               const TokenizerConfig& config);

/// If the directory's class defines sections, transformers 5 uses only the vocabulary of a
/// tokenizer.json (tokenization_utils_tokenizers.py, convert_to_native_format).
/// @param model_type of config.json, which takes precedence over the class (tokenization_auto.py)
/// @return nullopt: they are as the file's
std::optional<OtherClass> other_class(const TokenizerSource& source, const TokenizerConfig& config,
                                      const std::string& model_type);

}  // namespace sftrun::tokenizer
