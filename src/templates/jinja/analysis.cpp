#include "jinja/analysis.h"

#include <algorithm>
#include <map>
#include <set>

namespace sftrun::templates::jinja {
namespace {

/// How a scope's name gets its first value when the scope is entered (jinja2's VAR_LOAD_*).
enum class Load : uint8_t { kParameter, kContext, kOuter, kUnset };

struct Scope {
  const Scope* parent = nullptr;
  std::map<Symbol, Load> loads;
  std::set<Symbol> stores;

  bool knows(Symbol name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
      if (scope->loads.count(name) != 0) return true;
    }
    return false;
  }
  bool outer_knows(Symbol name) const { return parent != nullptr && parent->knows(name); }
  void load(Symbol name) {
    if (!knows(name)) loads[name] = Load::kContext;
  }
  void store(Symbol name) {
    stores.insert(name);
    if (loads.count(name) == 0) loads[name] = outer_knows(name) ? Load::kOuter : Load::kUnset;
  }
  void declare(Symbol name) {
    stores.insert(name);
    loads[name] = Load::kParameter;
  }
  /// After branches of which one runs: a name that only some of them assign may keep its earlier
  /// value.
  void merge(const std::vector<Scope>& branches) {
    std::set<Symbol> stored_in_branches;
    for (const Scope& branch : branches)
      stored_in_branches.insert(branch.stores.begin(), branch.stores.end());
    std::vector<Symbol> conditional;
    std::set_difference(stored_in_branches.begin(), stored_in_branches.end(), stores.begin(),
                        stores.end(), std::back_inserter(conditional));
    for (const Scope& branch : branches) {
      for (const auto& [name, how] : branch.loads) loads[name] = how;
      stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const Symbol name : conditional)
      loads[name] = outer_knows(name) ? Load::kOuter : Load::kContext;
  }
  std::vector<Symbol> unset() const {
    std::vector<Symbol> names;
    for (const auto& [name, how] : loads) {
      if (how == Load::kUnset) names.push_back(name);
    }
    return names;
  }
};

/// Calls `visit` on every sub-expression directly below `expr`.
template <typename Visit>
void for_each_child(const Expr& expr, Visit&& visit) {
  for (const ExprPtr& operand : expr.operands) {
    if (operand) visit(*operand);
  }
  if (!expr.arguments) return;
  for (const ExprPtr& argument : expr.arguments->positional) visit(*argument);
  for (const auto& [name, argument] : expr.arguments->named) visit(*argument);
  if (expr.arguments->star) visit(*expr.arguments->star);
  if (expr.arguments->double_star) visit(*expr.arguments->double_star);
}

class Analyser {
 public:
  explicit Analyser(Template& parsed)
      : template_(parsed),
        loop_(parsed.symbols.intern("loop")),
        caller_(parsed.symbols.intern("caller")),
        kwargs_(parsed.symbols.intern("kwargs")),
        varargs_(parsed.symbols.intern("varargs")) {}

  void run() {
    Scope root;
    collect(template_.body, root);
    template_.unset = root.unset();
    descend(template_.body, root, false);
  }

 private:
  // ---- Names of one scope: those that it uses directly, and those that nested scopes evaluate
  // outside.

  void load_names(const Expr& expr, Scope& scope) {
    if (expr.kind == ExprKind::kName || expr.kind == ExprKind::kNamespaceRef)
      scope.load(expr.symbol);
    for_each_child(expr, [&](const Expr& child) { load_names(child, scope); });
  }
  void load_names(const ExprPtr& expr, Scope& scope) {
    if (expr) load_names(*expr, scope);
  }
  void store_names(const Expr& target, Scope& scope, bool as_parameter) {
    if (target.kind == ExprKind::kNamespaceRef) scope.load(target.symbol);
    if (target.kind == ExprKind::kName)
      as_parameter ? scope.declare(target.symbol) : scope.store(target.symbol);
    for (const ExprPtr& item : target.operands) store_names(*item, scope, as_parameter);
  }

  void collect(const Body& body, Scope& scope) {
    for (const auto& statement : body) collect(*statement, scope);
  }
  void collect(const Statement& s, Scope& scope) {
    switch (s.kind) {
      case StatementKind::kPrint:
        for (const ExprPtr& expr : s.expressions) load_names(expr, scope);
        break;
      case StatementKind::kIf:
        collect_if(s, scope);
        break;
      case StatementKind::kFor:
        load_names(s.value, scope);
        break;
      case StatementKind::kSet:
        load_names(s.value, scope);
        store_names(*s.target, scope, false);
        break;
      case StatementKind::kSetBlock:
        store_names(*s.target, scope, false);
        break;
      case StatementKind::kFilterBlock:
        load_names(s.filter, scope);
        break;
      case StatementKind::kMacro:
        scope.store(s.symbol);
        break;
      case StatementKind::kCallBlock:
        load_names(s.value, scope);
        break;
      case StatementKind::kWith:
        for (const ExprPtr& value : s.expressions) load_names(value, scope);
        break;
      case StatementKind::kText:
      case StatementKind::kGeneration:
      case StatementKind::kBlock:
      case StatementKind::kBreak:
      case StatementKind::kContinue:
        break;
    }
  }

  /// Bodies in a chain: jinja2 treats every `elif` as a separate if inside one branch.
  void collect_if(const Statement& s, Scope& scope) {
    load_names(s.expressions[0], scope);
    pay_for_copies(3, scope, s.line);
    std::vector<Scope> branches(3, scope);
    collect(s.bodies[0], branches[0]);
    for (size_t i = 1; i < s.bodies.size(); ++i) {
      Scope& chain = branches[1];
      load_names(s.expressions[i], chain);
      pay_for_copies(2, chain, s.line);  // and one to merge it
      std::vector<Scope> inner(1, chain);
      collect(s.bodies[i], inner[0]);
      chain.merge(inner);
    }
    collect(s.otherwise, branches[2]);
    scope.merge(branches);
  }

  /// Each branch copies the names known in its scope.
  void pay_for_copies(size_t num_copies, const Scope& scope, int line) {
    constexpr size_t kMaxCopied = 5'000'000;  // templates in use need some ten thousand
    num_copied_ += num_copies * (scope.loads.size() + scope.stores.size());
    if (num_copied_ > kMaxCopied) fail("the template has too many branches and variables", line);
  }

  // ---- Nested scopes

  Scope nested(const Scope& parent) {
    Scope scope;
    scope.parent = &parent;
    return scope;
  }

  /// `soft`: directly inside an if, where an unknown filter is an error only when it is reached.
  void descend(const Body& body, const Scope& scope, bool soft) {
    for (const auto& statement : body) descend(*statement, scope, soft);
  }

  void scoped_body(Body& body, const Scope& parent, std::vector<Symbol>& unset,
                   const ExprPtr& filter = nullptr) {
    Scope scope = nested(parent);
    if (filter) load_names(filter, scope);
    collect(body, scope);
    unset = scope.unset();
    descend(body, scope, false);
  }

  void descend(Statement& s, const Scope& scope, bool soft) {
    const bool is_if = s.kind == StatementKind::kIf;
    for (const ExprPtr& expr : s.expressions) check(expr, soft || is_if);
    for (const ExprPtr* expr : {&s.value, &s.filter}) check(*expr, soft);
    switch (s.kind) {
      case StatementKind::kIf:
        for (const Body& body : s.bodies) descend(body, scope, true);
        descend(s.otherwise, scope, true);
        break;
      case StatementKind::kFor:
        descend_for(s, scope);
        break;
      case StatementKind::kMacro:
      case StatementKind::kCallBlock:
        descend_macro(s, scope);
        break;
      case StatementKind::kWith: {
        Scope inner = nested(scope);
        for (const ExprPtr& target : s.targets) store_names(*target, inner, true);
        collect(s.body, inner);
        s.unset = inner.unset();
        descend(s.body, inner, false);
        break;
      }
      case StatementKind::kSetBlock:
      case StatementKind::kGeneration:
        scoped_body(s.body, scope, s.unset);
        break;
      case StatementKind::kFilterBlock:
        scoped_body(s.body, scope, s.unset, s.filter);
        break;
      case StatementKind::kBlock: {
        Scope alone;
        collect(s.body, alone);
        s.unset = alone.unset();
        descend(s.body, alone, false);
        break;
      }
      case StatementKind::kText:
      case StatementKind::kPrint:
      case StatementKind::kSet:
      case StatementKind::kBreak:
      case StatementKind::kContinue:
        break;
    }
  }

  void descend_for(Statement& s, const Scope& scope) {
    refuse_loop_target(*s.target);
    Scope inner = nested(scope);
    inner.declare(loop_);
    store_names(*s.target, inner, true);
    collect(s.body, inner);
    s.unset = inner.unset();
    check(s.condition, false);
    descend(s.body, inner, false);
    scoped_body(s.otherwise, scope, s.unset_otherwise);
  }

  void refuse_loop_target(const Expr& target) {
    if (target.kind == ExprKind::kName && target.symbol == loop_) {
      fail("Can't assign to special loop variable in for-loop target", target.line);
    }
    for (const ExprPtr& item : target.operands) refuse_loop_target(*item);
  }

  void descend_macro(Statement& s, const Scope& scope) {
    MacroDefinition& macro = *s.macro;
    std::set<Symbol> wanted = {caller_, kwargs_, varargs_}, used;
    find_undeclared(s.body, wanted, used);
    Scope inner = nested(scope);
    for (const Parameter& parameter : macro.parameters) {
      inner.declare(parameter.symbol);
      wanted.insert(parameter.symbol);
    }
    const auto is_parameter = [&macro](Symbol symbol) {
      return std::any_of(macro.parameters.begin(), macro.parameters.end(),
                         [symbol](const Parameter& p) { return p.symbol == symbol; });
    };
    macro.uses_caller = used.count(caller_) != 0;
    macro.uses_kwargs = used.count(kwargs_) != 0 && !is_parameter(kwargs_);
    macro.uses_varargs = used.count(varargs_) != 0 && !is_parameter(varargs_);
    for (const Symbol special : {caller_, kwargs_, varargs_}) {
      if (used.count(special) != 0) inner.declare(special);
    }
    for (const Parameter& parameter : macro.parameters) {
      check(parameter.otherwise, false);
      load_names(parameter.otherwise, inner);
    }
    collect(s.body, inner);
    s.unset = inner.unset();
    descend(s.body, inner, false);
  }

  /// Which of the wanted names the body reads; a name it assigns first is no longer wanted.
  void find_undeclared(const Body& body, std::set<Symbol>& wanted, std::set<Symbol>& used) {
    const auto visit = [&](const auto& self, const Expr& expr, bool is_target) -> void {
      if (expr.kind == ExprKind::kName) {
        if (is_target) {
          wanted.erase(expr.symbol);
        } else if (wanted.count(expr.symbol) != 0) {
          used.insert(expr.symbol);
        }
      }
      for_each_child(expr, [&](const Expr& child) { self(self, child, is_target); });
    };
    const auto visit_pointer = [&](const ExprPtr& expr, bool is_target) {
      if (expr) visit(visit, *expr, is_target);
    };
    for (const auto& s : body) {
      if (s->kind == StatementKind::kBlock) continue;
      visit_pointer(s->target, true);
      for (const ExprPtr& target : s->targets) visit_pointer(target, true);
      for (const ExprPtr& expr : s->expressions) visit_pointer(expr, false);
      for (const ExprPtr* expr : {&s->value, &s->filter, &s->condition})
        visit_pointer(*expr, false);
      if (s->macro) {
        for (const Parameter& parameter : s->macro->parameters)
          visit_pointer(parameter.otherwise, false);
      }
      for (const Body& inner : s->bodies) find_undeclared(inner, wanted, used);
      find_undeclared(s->body, wanted, used);
      find_undeclared(s->otherwise, wanted, used);
    }
  }

  // ---- Filters and tests

  void check(const ExprPtr& expr, bool soft) {
    if (expr) check(*expr, soft);
  }
  void check(const Expr& expr, bool soft) {
    if (!soft && expr.kind == ExprKind::kFilter && expr.filter == nullptr) {
      fail("No filter named '" + expr.name + "'.", expr.line);
    }
    if (!soft && expr.kind == ExprKind::kTest && expr.test == nullptr) {
      fail("No test named '" + expr.name + "'.", expr.line);
    }
    const bool inner_soft = soft || expr.kind == ExprKind::kCondition;
    for_each_child(expr, [&](const Expr& child) { check(child, inner_soft); });
  }

  Template& template_;
  size_t num_copied_ = 0;
  Symbol loop_, caller_, kwargs_, varargs_;
};

}  // namespace

void analyse(Template& parsed) {
  Analyser(parsed).run();
}

}  // namespace sftrun::templates::jinja
