#pragma once

#include <string_view>

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace sftrun::templates::jinja {

/// A filter: what `{{ value | name(args) }}` calls.
using Filter = Value (*)(Runtime&, const Value& value, const Args& args);

/// jinja2's built-in filters (tojson as in transformers), or null.
Filter find_filter(std::string_view name);

// The groups of filters that it searches.
Filter find_text_filter(std::string_view name);
Filter find_wrapping_filter(std::string_view name);
Filter find_number_filter(std::string_view name);
Filter find_sequence_filter(std::string_view name);
Filter find_selection_filter(std::string_view name);

struct NamedFilter {
  std::string_view name;
  Filter filter;
};

}  // namespace sftrun::templates::jinja
