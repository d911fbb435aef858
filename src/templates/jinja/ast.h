#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jinja/filters.h"
#include "jinja/tests.h"
#include "jinja/value.h"

/// A parsed template. Immutable once analysed, shared by all renders.
namespace sftrun::templates::jinja {

using Symbol = int32_t;  ///< a variable's name, numbered per template

class SymbolTable {
 public:
  Symbol intern(const std::string& name) {
    const auto [it, is_new] = ids_.emplace(name, static_cast<Symbol>(names_.size()));
    if (is_new) names_.push_back(name);
    return it->second;
  }
  /// -1 if the template does not use it.
  Symbol find(const std::string& name) const {
    const auto it = ids_.find(name);
    return it == ids_.end() ? -1 : it->second;
  }
  size_t size() const { return names_.size(); }
  const std::string& name(Symbol symbol) const { return names_[static_cast<size_t>(symbol)]; }

 private:
  std::unordered_map<std::string, Symbol> ids_;
  std::vector<std::string> names_;
};

enum class ExprKind : uint8_t {
  kConst,         // constant
  kName,          // symbol
  kNamespaceRef,  // symbol.name, as an assignment's target
  kTuple,         // operands
  kList,          // operands
  kDict,          // operands: key, value, key, value, …
  kCondition,     // operands: test, then, otherwise (may be null)
  kOr,            // operands: 2
  kAnd,           // operands: 2
  kNot,           // operands: 1
  kCompare,       // operands: n + 1, operators: n
  kBinary,        // operands: 2, name: the operator
  kNegate,        // operands: 1
  kPlus,          // operands: 1
  kConcat,        // operands: n
  kAttribute,     // operands: 1, name
  kItem,          // operands: 2
  kSlice,         // operands: object, start, stop, step (each may be null)
  kCall,          // operands: 1, arguments
  kFilter,        // operands: 1 (null: the block's text), name, arguments
  kTest,          // operands: 1, name, arguments
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 0;
  int depth = 1;  ///< of the tree below, bounded by make_expr and set_arguments
  Symbol symbol = -1;
  std::string name;
  Value constant;
  std::vector<ExprPtr> operands;
  std::vector<std::string> operators;
  std::unique_ptr<Arguments> arguments;  ///< of calls, filters and tests
  Filter filter = nullptr;               ///< null: unknown
  Test test = nullptr;
};

/// The functions that make expressions throw a TemplateError if the tree becomes too deep.
ExprPtr make_expr(ExprKind kind, int line, std::vector<ExprPtr> operands);
template <class... Operands>
ExprPtr make_expr(ExprKind kind, int line, Operands... operands) {
  std::vector<ExprPtr> list;
  (list.push_back(std::move(operands)), ...);
  return make_expr(kind, line, std::move(list));
}
ExprPtr make_constant(int line, Value value);
void set_arguments(Expr& expr, Arguments arguments);

enum class StatementKind : uint8_t {
  kText,   // text
  kPrint,  // expressions
  kIf,     // tests and bodies in turn, then otherwise
  kFor,
  kSet,          // target = value
  kSetBlock,     // target, filter (may be null), body
  kFilterBlock,  // filter, body
  kMacro,
  kCallBlock,   // value: the call; a macro in all else
  kGeneration,  // body
  kWith,        // targets, values, body
  kBlock,       // body
  kBreak,
  kContinue,
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Parameter {
  Symbol symbol = -1;
  std::string name;
  ExprPtr otherwise;  ///< null: none
};

/// The definition of a `{% macro %}` or `{% call %}`.
struct MacroDefinition {
  std::string name;
  std::vector<Parameter> parameters;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
  bool explicit_caller = false;  ///< "caller" is one of the parameters
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;
  Symbol symbol = -1;                ///< a macro's name
  std::vector<ExprPtr> expressions;  ///< printed; tests of if; values of with
  std::vector<Body> bodies;          ///< of if, one per test
  Body body, otherwise;
  std::vector<ExprPtr> targets;  ///< of with
  ExprPtr target, value, filter, condition;
  bool recursive = false;  ///< for … recursive
  bool scoped = false;     ///< block … scoped
  std::unique_ptr<MacroDefinition> macro;
  /// Names that this statement's scope assigns before it reads them. They are undefined until then,
  /// even if the context has them (filled by the analysis).
  std::vector<Symbol> unset, unset_otherwise;
};

struct Template {
  SymbolTable symbols;
  Body body;
  std::vector<Symbol> unset;
  bool has_generation_marks = false;
};

}  // namespace sftrun::templates::jinja
