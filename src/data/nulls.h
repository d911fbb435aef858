#pragma once

#include "sftrun/data/json_lines.h"

/// A null member is a missing one, as in tables: they have every member in every row, and what
/// `datasets` writes from them as JSON has the nulls.
namespace sftrun::data {

/// The member; null if it is missing, or null itself.
const Json* value_of(const Json& object, const char* key);

/// Whether a member says nothing: null, "", [] or {}. Tables and tools write these for what is not there.
bool is_nothing(const Json& value);

/// Removes the null members of objects, at every depth. Items of lists stay.
void drop_nulls(Json& value);

/// Whether there is a null member.
bool has_null_member(const Json& value);

}  // namespace sftrun::data
