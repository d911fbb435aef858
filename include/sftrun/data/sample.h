#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/example.h"
#include "sftrun/data/text_model.h"

namespace sftrun::data {

/// The first examples of data sets as in training, equally many of each. Reads no more than needed
/// and caches nothing.
/// @param is_validation which split of a folder is used
/// @throws DataError as load_dataset, for the records read
std::vector<Example> first_examples(const config::RunConfig& config,
                                    const std::vector<config::DataSource>& sources,
                                    bool is_validation, const TextModel& model, int64_t count);

}  // namespace sftrun::data
