#pragma once

#include "jinja/interpreter.h"

namespace sftrun::templates::jinja {

/// A `{% macro %}`, or the `caller` of a `{% call %}` block, with the scope it was defined in.
class Macro : public Object {
 public:
  Macro(Interpreter& interpreter, const Statement& statement, FramePtr closure)
      : interpreter_(interpreter), statement_(statement), closure_(std::move(closure)) {}
  std::string type_name() const override { return "Macro"; }
  std::string repr(Runtime&) const override {
    const std::string& name = statement_.macro->name;
    return name.empty() ? "<Macro anonymous>" : "<Macro '" + name + "'>";
  }
  std::optional<Value> attribute(Runtime&, std::string_view name) override;
  bool callable() const override { return true; }
  Value call(Runtime&, const Args& args) override {
    return interpreter_.call_macro(statement_, closure_, args);
  }

 private:
  Interpreter& interpreter_;
  const Statement& statement_;
  FramePtr closure_;
};

}  // namespace sftrun::templates::jinja
