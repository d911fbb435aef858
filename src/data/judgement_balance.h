#pragma once

#include <optional>
#include <string>

#include "sftrun/data/dataset.h"

/// How many examples have which judgement.
namespace sftrun::data {

/// "3 desirable, 1 undesirable"; empty: the examples are not judged.
std::string judgement_counts(const DatasetStats& stats);

/// A warning that all examples have one judgement; nullopt: both occur, or they are not judged.
std::optional<std::string> one_sided_warning(const DatasetStats& stats);

}  // namespace sftrun::data
