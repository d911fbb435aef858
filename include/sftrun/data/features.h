#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sftrun/core/feature_projector.h"
#include "sftrun/data/media.h"
#include "sftrun/tokenizer/tokenizer.h"

/// Features that another encoder computed, in files: .npy (NumPy's format 1 to 3) or .safetensors with one tensor, or one that is named
/// `features`. Values are fp16, bf16, fp32 or fp64, little-endian; the last dimension is the width, all others are rows.
namespace sftrun::data {

/// How a model reads features.
struct FeatureInput {
  std::vector<FeatureProjector> projectors;
  /// A special token of the tokenizer, which stands in the place of features: one for each row. Its embedding is replaced.
  tokenizer::TokenId token = -1;
  std::string text;  ///< of the token
};

/// @return null: there are no projectors
/// @throws ConfigError if the tokenizer has no special token that can stand for features
std::shared_ptr<const FeatureInput> feature_input_of(
    const std::vector<FeatureProjector>& projectors, const tokenizer::Tokenizer& tokenizer);

/// The rows that a file has, by its header.
/// @throws DataError naming the file, for another format or width, and for fewer rows than the projector makes tokens of
int64_t num_feature_rows(const std::filesystem::path& path, const FeatureProjector& projector);

/// Reads a file's features, and takes means of its rows if the projector has another number of tokens: token i has those of rows
/// [floor(i n / tokens), ceil((i + 1) n / tokens)), as torch's adaptive_avg_pool1d.
/// @param media of features   @param to [media.num_tokens, input_width]
/// @throws DataError naming the file: as above, for another number of rows than when the data were tokenised, for NaN and infinite values
void read_features(const SequenceMedia& media, const FeatureProjector& projector,
                   std::span<float> to);

}  // namespace sftrun::data
