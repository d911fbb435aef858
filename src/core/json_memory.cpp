#include "sftrun/core/json_memory.h"

namespace sftrun {

void empty_json(nlohmann::ordered_json& value) noexcept {
  using Json = nlohmann::ordered_json;
  if (auto* list = value.get_ptr<Json::array_t*>()) {
    for (Json& item : *list) empty_json(item);
    list->clear();
  } else if (auto* object = value.get_ptr<Json::object_t*>()) {
    for (auto& [key, item] : *object) empty_json(item);
    object->clear();
  }
}

}  // namespace sftrun
