#pragma once

#include <string>
#include <vector>

#include "sftrun/reward/rewards.h"

namespace sftrun::reward {

/// The reference that a record has under a key, as texts: a text, number or boolean, or a list of
/// them, each of which is right.   @return empty: the key is null, and the answer is not judged
/// @throws DataError naming the key and the record if it is missing, empty or a map
std::vector<std::string> references_of(const nlohmann::ordered_json& record, const std::string& key,
                                       const std::string& label, const std::string& where);

}  // namespace sftrun::reward
