#pragma once

#include "sftrun/data/json_lines.h"

/// A null member is a missing one, as in tables: they have every member in every row, and what
/// `datasets` writes from them as JSON has the nulls.
namespace sftrun::data {

/// The member; null if it is missing, or null itself.
const Json* value_of(const Json& object, const char* key);

/// Removes the members that are null, of the object alone.
void drop_nulls(Json& object);

/// The same for each message, its content parts and its calls. What the author of the data chose
/// freely stays: `arguments`, and a tool's description.
void drop_nulls_of_messages(Json& messages);

}  // namespace sftrun::data
