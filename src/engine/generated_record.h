#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sftrun::engine {

/// A record of `sftrun generate` or `rollouts/` as one that ends with what was generated: the answer to its
/// prompt or conversation, in place of the record's own one, or the end of its text. Other records, which
/// have no "generated", stay as they are.
/// @param where "file:line", for errors
/// @throws DataError for an answer that belongs to no prompt
nlohmann::ordered_json with_generated(const nlohmann::ordered_json& record,
                                      const std::string& where);

}  // namespace sftrun::engine
