#pragma once

#include <optional>
#include <string>

#include "tokenizer_files.h"

/// What the tokenizer classes of transformers do with a text before their model sees it.
namespace sftrun::text {

struct ClassSections {
  Json normalizer, pre_tokenizer;  ///< sections of a tokenizer.json
};

/// @param name without "Fast"   @returns nothing for a class that is not known here
std::optional<ClassSections> sections_of_class(const std::string& name,
                                               const TokenizerConfig& config);

/// transformers 5 takes of a tokenizer.json only its vocabulary when the directory's class has
/// sections of its own (tokenization_utils_tokenizers.py, convert_to_native_format). The file's
/// sections are followed here, as by transformers 4: they are what the model was trained with.
/// Where the two are not the same, a warning says so.
/// @param model_type of config.json, which can overrule the class (tokenization_auto.py)
void warn_of_other_class(const TokenizerSource& source, const TokenizerConfig& config,
                         const std::string& model_type);

}  // namespace sftrun::text
