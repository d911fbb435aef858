#include "jinja/macro_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace sftrun::templates::jinja {

MacroParameters::MacroParameters(const SymbolTable& symbols)
    : caller_(symbols.find("caller")),
      kwargs_(symbols.find("kwargs")),
      varargs_(symbols.find("varargs")) {}

void MacroParameters::bind(const MacroDefinition& macro, const Args& args, Evaluator& evaluator,
                           Frame& frame) const {
  NamedArgs named = args.named;
  const auto take_named = [&named](const std::string& name) -> std::optional<Value> {
    const auto it = std::find_if(named.begin(), named.end(),
                                 [&name](const auto& n) { return n.first == name; });
    if (it == named.end()) return std::nullopt;
    Value value = std::move(it->second);
    named.erase(it);
    return value;
  };
  std::vector<const Parameter*> missing;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    std::optional<Value> value =
        i < args.positional.size() ? args.positional[i] : take_named(parameter.name);
    if (!value) missing.push_back(&parameter);
    frame.set(parameter.symbol, std::move(value));
  }
  if (macro.uses_caller && !macro.explicit_caller)
    frame.set(caller_, take_named("caller").value_or(Value::undefined("No caller defined")));
  bind_kwargs(macro, std::move(named), frame);
  bind_varargs(macro, args, frame);
  for (const Parameter* parameter : missing) {  // a default may name other parameters
    frame.set(parameter->symbol, parameter->otherwise
                                     ? evaluator.evaluate(*parameter->otherwise, frame)
                                     : Value::undefined(fmt::format(
                                           "parameter '{}' was not provided", parameter->name)));
  }
}

void MacroParameters::bind_kwargs(const MacroDefinition& macro, NamedArgs named,
                                  Frame& frame) const {
  if (macro.uses_kwargs) {
    Dict rest;
    for (auto& [name, value] : named) rest.set(Value::string(name), std::move(value));
    frame.set(kwargs_, Value::dict(std::move(rest)));
  } else if (!named.empty()) {
    fail(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, named.front().first));
  }
}

void MacroParameters::bind_varargs(const MacroDefinition& macro, const Args& args,
                                   Frame& frame) const {
  const size_t taken = std::min(args.positional.size(), macro.parameters.size());
  std::vector<Value> extra(args.positional.begin() + static_cast<ptrdiff_t>(taken),
                           args.positional.end());
  if (macro.uses_varargs) {
    frame.set(varargs_, Value::tuple(std::move(extra)));
  } else if (!extra.empty()) {
    fail(fmt::format("macro '{}' takes not more than {} argument(s)", macro.name,
                     macro.parameters.size()));
  }
}

}  // namespace sftrun::templates::jinja
