#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "sftrun/config/binding.h"
#include "sftrun/config/value.h"

/// Values of one field, by its name ("train.batch_size").
namespace sftrun::config {

/// What the field would hold after the value was assigned, or the complaint.
std::optional<Complaint> try_value(std::string_view field, const Value& value,
                                   nlohmann::ordered_json& result);
/// The value of the field as it is compared: fsdp and zero3 are two names of one strategy.
nlohmann::ordered_json canonical(std::string_view field, nlohmann::ordered_json value);
/// Whether two values mean the same for a field: true and yes, 1e-4 and 0.0001, fsdp and zero3. A
/// value that the field does not take is not compared.
bool are_same(std::string_view field, const Value& a, const Value& b);

}  // namespace sftrun::config
