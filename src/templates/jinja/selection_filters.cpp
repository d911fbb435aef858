// Filters that apply other filters or tests to every item: map, select, reject, selectattr,
// rejectattr, attr.
#include <algorithm>
#include <iterator>

#include "jinja/access.h"
#include "jinja/filters.h"
#include "jinja/objects.h"
#include "jinja/tests.h"

namespace sftrun::templates::jinja {
namespace {

int depth_of(const Args& args) {
  int depth = 0;
  for (const Value& value : args.positional) depth = std::max(depth, value.depth());
  for (const auto& [name, value] : args.named) depth = std::max(depth, value.depth());
  return depth;
}

Value empty_generator() {
  return make_generator("generator", Value::list({}), 0, [](Iterator&, Value&) { return false; });
}

Value map_attribute(Runtime& runtime, const Value& value, const Args& args) {
  Args named;
  named.named = args.named;
  const Params params("map", named, {"attribute", "default"});
  const Value path = params.required(0);
  const std::optional<Value> otherwise =
      params.given_not_none(1) ? std::optional(*params[1]) : std::nullopt;
  return make_generator("generator", value, depth_of(args),
                        [&runtime, path, otherwise](Iterator& items, Value& out) {
                          Value item;
                          if (!items.next(item)) return false;
                          runtime.step();
                          out = get_path(runtime, item, path);
                          if (out.is_undefined() && otherwise) out = *otherwise;
                          return true;
                        });
}

Value map_filter(Runtime& runtime, const Value& value, const Args& args) {
  if (!truthy(value)) return empty_generator();
  const bool by_attribute =
      args.positional.empty() && std::any_of(args.named.begin(), args.named.end(),
                                             [](const auto& a) { return a.first == "attribute"; });
  if (by_attribute) return map_attribute(runtime, value, args);
  if (args.positional.empty()) fail("map requires a filter argument");
  const Value& name = args.positional[0];
  const Filter filter = name.is_string() ? find_filter(name.bytes()) : nullptr;
  if (filter == nullptr)
    fail("No filter named " + (name.is_string() ? "'" + name.bytes() + "'" : type_name(name)) +
         ".");
  Args rest = args;
  rest.positional.erase(rest.positional.begin());
  return make_generator("generator", value, depth_of(args),
                        [&runtime, filter, rest](Iterator& items, Value& out) {
                          Value item;
                          if (!items.next(item)) return false;
                          runtime.step();
                          const Runtime::Nesting nesting(runtime);
                          out = filter(runtime, item, rest);
                          return true;
                        });
}

/// @param wanted keep items with this result of the test
Value selection(Runtime& runtime, const Value& value, const Args& args, bool wanted,
                bool by_attribute) {
  if (!truthy(value)) return empty_generator();
  Args rest = args;
  Value path;
  if (by_attribute) {
    if (rest.positional.empty()) fail("Missing parameter for attribute name");
    path = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
  }
  Test test = nullptr;
  if (!rest.positional.empty()) {
    const Value name = rest.positional[0];
    test = name.is_string() ? find_test(name.bytes()) : nullptr;
    if (test == nullptr)
      fail("No test named " + (name.is_string() ? "'" + name.bytes() + "'" : type_name(name)) +
           ".");
    rest.positional.erase(rest.positional.begin());
  }
  return make_generator(
      "generator", value, depth_of(args),
      [&runtime, path, test, rest, wanted](Iterator& items, Value& out) {
        for (Value item; items.next(item);) {
          runtime.step();
          const Runtime::Nesting nesting(runtime);
          const Value tested = get_path(runtime, item, path);
          if ((test != nullptr ? test(runtime, tested, rest) : truthy(tested)) != wanted) continue;
          out = item;
          return true;
        }
        return false;
      });
}

Value select(Runtime& r, const Value& value, const Args& args) {
  return selection(r, value, args, true, false);
}
Value reject(Runtime& r, const Value& value, const Args& args) {
  return selection(r, value, args, false, false);
}
Value selectattr(Runtime& r, const Value& value, const Args& args) {
  return selection(r, value, args, true, true);
}
Value rejectattr(Runtime& r, const Value& value, const Args& args) {
  return selection(r, value, args, false, true);
}

/// Like value.name, but without falling back to value["name"].
Value attr(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("attr", args, {"name"});
  const std::string& name = params.text(0).bytes();
  if (value.is_dict()) {
    const Value found = get_attribute(runtime, Value::dict(Dict()), name);
    return found.is_undefined() ? found : get_attribute(runtime, value, name);
  }
  return get_attribute(runtime, value, name);
}

constexpr NamedFilter kSelectionFilters[] = {{"map", map_filter},        {"select", select},
                                             {"reject", reject},         {"selectattr", selectattr},
                                             {"rejectattr", rejectattr}, {"attr", attr}};

}  // namespace

Filter find_selection_filter(std::string_view name) {
  const auto it = std::find_if(std::begin(kSelectionFilters), std::end(kSelectionFilters),
                               [name](const auto& f) { return f.name == name; });
  return it == std::end(kSelectionFilters) ? nullptr : it->filter;
}

}  // namespace sftrun::templates::jinja
