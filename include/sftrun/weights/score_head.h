#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "sftrun/weights/checkpoint.h"

/// Heads of scores (transformers' ...ForSequenceClassification): labels.json in the folder of an adapter has the names of its classes, as
/// config.json of a whole model does: {"num_labels", "id2label", "label2id", "problem_type", "pad_token_id"}.
/// They are keyword arguments with which AutoModelForSequenceClassification loads the base for the adapter; "id2label" needs numbers as keys.
namespace sftrun::weights {

inline constexpr const char* kLabelsFile = "labels.json";

/// The model with a head of scores in place of its language-model head. A head of its own is kept where it has as many labels; else the
/// values are normal with the standard deviation `initializer_range` of config.json, as in transformers. Texts are scored at the last
/// token that is not the padding token: that of config.json, else the tokenizer's.
/// @throws ConfigError if transformers has no such class for the model
std::shared_ptr<const Checkpoint> with_score(std::shared_ptr<const Checkpoint> model,
                                             spec::ScoreSpec score, uint64_t seed = 0);

/// The padding token to write for a model with a head of scores: its own, else a special token that ends no text. nullopt: there is none.
std::optional<int64_t> padding_to_write(const Checkpoint& model);

/// The keys of config.json and labels.json.   @pre the model has a head of scores
nlohmann::ordered_json labels_json(const spec::ArchSpec& arch, std::optional<int64_t> padding);
/// Writes nothing for a model with a language-model head.
void write_labels(const std::filesystem::path& folder, const spec::ArchSpec& arch);
/// Of an adapter: its labels.json, else the number of rows of its `score.weight`. nullopt: it has no head of scores.
/// @throws DataError for a file of another form
std::optional<spec::ScoreSpec> read_score(const std::filesystem::path& adapter);

}  // namespace sftrun::weights
