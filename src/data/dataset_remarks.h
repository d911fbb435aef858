#pragma once

#include <string>
#include <vector>

#include "dataset_tallies.h"

namespace sftrun::data {

/// A remark about a data set. It is cached with the data, and logged again when they are used
/// again.
struct Remark {
  bool is_warning = false;
  std::string text;
};
void say(const std::vector<Remark>& remarks);

/// Remarks about doubtful data, and the numbers of records and tokens.
/// @param tallies of a data set of which at least one example is trained on
std::vector<Remark> remarks_on(const DatasetTallies& tallies, const CheckContext& context);

}  // namespace sftrun::data
