#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/example.h"
#include "sftrun/data/text_model.h"

namespace sftrun::data {

/// The first examples of data sets as training takes them, as many of each; no more is read than
/// they need, and nothing is kept.
/// @param is_validation which split of a folder is meant
/// @throws DataError as load_dataset, for what is read
std::vector<Example> first_examples(const config::RunConfig& config,
                                    const std::vector<config::DataSource>& sources,
                                    bool is_validation, const TextModel& model, int64_t count);

}  // namespace sftrun::data
