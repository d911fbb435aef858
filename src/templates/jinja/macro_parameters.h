#pragma once

#include <string>
#include <utility>
#include <vector>

#include "jinja/evaluator.h"

namespace sftrun::templates::jinja {

/// Binds the arguments of a call to the parameters of a macro, as jinja2 does. What is left goes to
/// the variables `caller`, `kwargs` and `varargs`, if the macro uses them.
class MacroParameters {
 public:
  explicit MacroParameters(const SymbolTable& symbols);

  /// @param frame the scope of the macro's body
  /// @throws TemplateError for arguments that the macro does not take
  void bind(const MacroDefinition& macro, const Args& args, Evaluator& evaluator,
            Frame& frame) const;

 private:
  using NamedArgs = std::vector<std::pair<std::string, Value>>;
  void bind_kwargs(const MacroDefinition& macro, NamedArgs named, Frame& frame) const;
  void bind_varargs(const MacroDefinition& macro, const Args& args, Frame& frame) const;

  Symbol caller_, kwargs_, varargs_;  ///< -1: the template does not use it
};

}  // namespace sftrun::templates::jinja
