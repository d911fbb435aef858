#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "jinja/ast.h"
#include "jinja/runtime.h"

namespace sftrun::templates::jinja {

/// The variables of a running scope. Inner scopes see outer variables; assignments affect only
/// their own scope.
struct Frame {
  struct Slot {
    Symbol symbol;
    std::optional<Value> value;  ///< none: undefined here, even if an outer scope has it
  };
  std::shared_ptr<Frame> parent;
  std::vector<Slot> slots;

  /// Of the scope and the scopes around it.
  size_t num_slots() const;
  Slot* find(Symbol symbol);
  void set(Symbol symbol, std::optional<Value> value);
};
using FramePtr = std::shared_ptr<Frame>;

/// The loop that a body belongs to.
enum class Flow : uint8_t { kNormal, kBreak, kContinue };

/// One render of a parsed template.
class Interpreter {
 public:
  /// @param context the variables, by symbol of the template; nullopt if the caller gives none
  Interpreter(const Template& parsed, Runtime& runtime, std::vector<std::optional<Value>> context);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// @throws TemplateError; `line()` then has its line.
  TaggedText run();
  int line() const { return line_; }

  /// The text of a macro's body (macros call this).
  Value call_macro(const Statement& statement, const FramePtr& closure, const Args& args);

 private:
  /// Redirects printed text to a buffer for its lifetime.
  class Capture;

  // Statements (interpreter.cpp)
  Flow run_body(const Body& body, const FramePtr& frame);
  Flow run_statement(const Statement& s, const FramePtr& frame);
  Flow run_if(const Statement& s, const FramePtr& frame);
  Flow run_with(const Statement& s, const FramePtr& frame);
  void run_for(const Statement& s, const Value& items, const FramePtr& frame, int depth0);
  void run_call_block(const Statement& s, const FramePtr& frame);
  TaggedText captured_body(const Statement& s, const FramePtr& frame);
  Value filtered_items(const Statement& s, const Value& items, const FramePtr& frame);
  void define_macro(const Statement& s, const FramePtr& frame);
  void bind_parameters(const Statement& s, const Args& args, const FramePtr& frame);
  void assign(const Expr& target, const Value& value, const FramePtr& frame);
  void unpack(const Expr& target, const Value& value, const FramePtr& frame);
  void print(const Value& value);
  FramePtr inner_frame(const FramePtr& parent, const std::vector<Symbol>& unset) const;
  void keep_frame(const FramePtr& frame);

  // Expressions (evaluate.cpp)
  Value evaluate(const Expr& expr, const FramePtr& frame);
  Value evaluate_name(const Expr& expr, const FramePtr& frame) const;
  Value evaluate_condition(const Expr& expr, const FramePtr& frame);
  Value evaluate_compare(const Expr& expr, const FramePtr& frame);
  Value evaluate_concat(const Expr& expr, const FramePtr& frame);
  Value evaluate_dict(const Expr& expr, const FramePtr& frame);
  Value evaluate_slice(const Expr& expr, const FramePtr& frame);
  Value evaluate_call(const Expr& expr, const FramePtr& frame);
  Value evaluate_test(const Expr& expr, const FramePtr& frame);
  Value apply_filters(const Expr& expr, const Value* block_text, const FramePtr& frame);
  std::vector<Value> evaluate_all(const std::vector<ExprPtr>& exprs, const FramePtr& frame);
  Args evaluate_arguments(const Arguments& arguments, const FramePtr& frame);

  const Template& template_;
  Runtime& runtime_;
  std::vector<std::optional<Value>> context_;
  FramePtr root_;
  std::vector<FramePtr>
      kept_frames_;  ///< those that macros refer to, emptied at the end to break cycles
  TaggedText* out_ = nullptr;
  int line_ = 1;
  Symbol loop_, caller_, kwargs_, varargs_;
};

}  // namespace sftrun::templates::jinja
