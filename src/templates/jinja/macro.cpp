#include "jinja/macro.h"

namespace sftrun::templates::jinja {

std::optional<Value> Macro::attribute(Runtime&, std::string_view name) {
  const MacroDefinition& macro = *statement_.macro;
  if (name == "name") return Value::string(macro.name);
  if (name == "catch_kwargs") return Value::boolean(macro.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(macro.uses_varargs);
  if (name == "caller") return Value::boolean(macro.uses_caller);
  if (name == "arguments") {
    std::vector<Value> names;
    for (const Parameter& parameter : macro.parameters)
      names.push_back(Value::string(parameter.name));
    return Value::tuple(std::move(names));
  }
  return std::nullopt;
}

}  // namespace sftrun::templates::jinja
