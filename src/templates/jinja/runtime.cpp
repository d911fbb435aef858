#include "jinja/runtime.h"

#include <fmt/format.h>

#include <algorithm>

namespace sftrun::templates::jinja {

Value call_value(Runtime& runtime, const Value& callee, const Args& args) {
  if (callee.is_undefined()) fail(callee.undefined().message);
  if (!callee.is_object()) fail("'" + type_name(callee) + "' object is not callable");
  runtime.step();
  const Runtime::Nesting nesting(runtime);
  const ObjectPtr keep_alive = callee.object();
  return keep_alive->call(runtime, args);
}

Params::Params(std::string_view function, const Args& args,
               std::initializer_list<std::string_view> names)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  if (args.positional.size() > names_.size()) {
    fail(fmt::format("{}() takes at most {} arguments ({} given)", function_, names_.size(),
                     args.positional.size()));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto it = std::find(names_.begin(), names_.end(), name);
    if (it == names_.end())
      fail(fmt::format("{}() got an unexpected keyword argument '{}'", function_, name));
    const auto index = static_cast<size_t>(it - names_.begin());
    if (values_[index] != nullptr)
      fail(fmt::format("{}() got multiple values for argument '{}'", function_, name));
    values_[index] = &value;
  }
}

const Value& Params::required(size_t index) const {
  if (values_[index] == nullptr) {
    fail(fmt::format("{}() is missing its argument '{}'", function_, names_[index]));
  }
  return *values_[index];
}

Int Params::integer(size_t index, Int otherwise) const {
  if (values_[index] == nullptr) return otherwise;
  const Value& value = *values_[index];
  if (value.is_undefined()) fail(value.undefined().message);
  if (!value.is_integral()) {
    fail(fmt::format("'{}' object cannot be interpreted as an integer", type_name(value)));
  }
  return value.integral();
}

bool Params::flag(size_t index, bool otherwise) const {
  return values_[index] == nullptr ? otherwise : truthy(*values_[index]);
}

const TaggedText& Params::text(size_t index) const {
  const Value& value = required(index);
  if (value.is_undefined()) fail(value.undefined().message);
  if (!value.is_string()) {
    fail(fmt::format("{}() argument '{}' must be str, not {}", function_, names_[index],
                     type_name(value)));
  }
  return value.text();
}

}  // namespace sftrun::templates::jinja
