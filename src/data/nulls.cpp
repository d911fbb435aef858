#include "nulls.h"

#include <algorithm>
#include <utility>

namespace sftrun::data {
namespace {

void drop_nulls_of_each(Json& list) {
  if (!list.is_array()) return;
  for (Json& item : list) drop_nulls(item);
}

}  // namespace

const Json* value_of(const Json& object, const char* key) {
  const auto found = object.find(key);  // end() also of what is no object
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

void drop_nulls(Json& object) {
  if (!object.is_object()) return;
  auto& members = object.get_ref<Json::object_t&>();
  const auto is_null = [](const auto& member) { return member.second.is_null(); };
  if (std::none_of(members.begin(), members.end(), is_null)) return;
  Json::object_t kept;
  for (auto& member : members)
    if (!is_null(member)) kept.push_back(std::move(member));
  members = std::move(kept);
}

void drop_nulls_of_messages(Json& messages) {
  drop_nulls_of_each(messages);
  for (Json& message : messages) {
    if (!message.is_object()) continue;
    if (const auto parts = message.find("content"); parts != message.end())
      drop_nulls_of_each(*parts);
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (Json& call : *calls) {
      drop_nulls(call);
      if (value_of(call, "function") != nullptr) drop_nulls(call["function"]);
    }
  }
}

}  // namespace sftrun::data
