#include "nulls.h"

#include <algorithm>
#include <utility>

namespace sftrun::data {

const Json* value_of(const Json& object, const char* key) {
  const auto found = object.find(key);  // end() also of what is no object
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool is_nothing(const Json& value) {
  return value.is_null() || (value.is_structured() && value.empty()) || value == Json("");
}

void drop_nulls(Json& value) {
  if (value.is_object()) {
    auto& members = value.get_ref<Json::object_t&>();
    const auto is_null = [](const auto& member) { return member.second.is_null(); };
    if (std::any_of(members.begin(), members.end(), is_null)) {
      Json::object_t kept;
      for (auto& member : members)
        if (!is_null(member)) kept.push_back(std::move(member));
      members = std::move(kept);
    }
  }
  if (value.is_structured())
    for (Json& item : value) drop_nulls(item);
}

bool has_null_member(const Json& value) {
  return value.is_structured() && std::any_of(value.begin(), value.end(), [&](const Json& item) {
           return (value.is_object() && item.is_null()) || has_null_member(item);
         });
}

}  // namespace sftrun::data
