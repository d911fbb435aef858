#include "jinja/filters.h"

namespace sftrun::templates::jinja {

Filter find_filter(std::string_view name) {
  for (const auto find : {find_text_filter, find_sequence_filter, find_selection_filter,
                          find_number_filter, find_wrapping_filter}) {
    if (const Filter filter = find(name)) return filter;
  }
  return nullptr;
}

}  // namespace sftrun::templates::jinja
