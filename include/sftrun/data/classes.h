#pragma once

#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

namespace sftrun::data {

/// The classes of records.
struct FoundClasses {
  std::vector<std::string> names;  ///< in the order of their scores
  config::ProblemType problem = config::ProblemType::kSingleLabel;
  std::string remark = {};  ///< a warning about the numbers of classes; empty: there is none
};

/// Reads all records of data.train and data.val, unless `data.classes` and `train.problem_type` say everything. Texts are names, in
/// alphabetical order; numbers from 0 count classes, whose names are LABEL_0 and so on; true and false are two classes.
/// @param known names of the classes of the model, which are taken if the records have no others
/// @throws DataError for records that mix texts and numbers, or have no classes or one; ConfigError for `data.classes` with a name
/// twice, an empty one or one with control characters
FoundClasses find_classes(const config::RunConfig& config,
                          const std::vector<std::string>& known = {});

}  // namespace sftrun::data
