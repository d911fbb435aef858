#pragma once

#include <optional>
#include <vector>

#include "jinja/ast.h"
#include "jinja/frame.h"
#include "jinja/runtime.h"

namespace sftrun::templates::jinja {

/// Evaluates the expressions of a template in one render. Every function throws a TemplateError,
/// whose line is that of the runtime.
class Evaluator {
 public:
  /// @param context the variables, by symbol; nullopt if the caller gives none
  Evaluator(const SymbolTable& symbols, Runtime& runtime, std::vector<std::optional<Value>> context)
      : symbols_(symbols), runtime_(runtime), context_(std::move(context)) {}

  Value evaluate(const Expr& expr, Frame& frame);
  Args evaluate_arguments(const Arguments& arguments, Frame& frame);
  /// @param block_text the operand of the innermost filter, if the filters are those of a block
  Value apply_filters(const Expr& expr, const Value* block_text, Frame& frame);
  /// Assigns to a name, to the names of a tuple, or to the attribute of a namespace.
  void assign(const Expr& target, const Value& value, Frame& frame);

 private:
  Value evaluate_name(const Expr& expr, Frame& frame) const;
  Value evaluate_condition(const Expr& expr, Frame& frame);
  Value evaluate_compare(const Expr& expr, Frame& frame);
  Value evaluate_concat(const Expr& expr, Frame& frame);
  Value evaluate_dict(const Expr& expr, Frame& frame);
  Value evaluate_slice(const Expr& expr, Frame& frame);
  Value evaluate_call(const Expr& expr, Frame& frame);
  Value evaluate_test(const Expr& expr, Frame& frame);
  std::vector<Value> evaluate_all(const std::vector<ExprPtr>& exprs, Frame& frame);
  void unpack(const Expr& target, const Value& value, Frame& frame);

  const SymbolTable& symbols_;
  Runtime& runtime_;
  std::vector<std::optional<Value>> context_;
};

}  // namespace sftrun::templates::jinja
