#pragma once

#include <optional>
#include <vector>

#include "jinja/ast.h"
#include "jinja/evaluator.h"
#include "jinja/frame.h"
#include "jinja/macro_parameters.h"
#include "jinja/output.h"
#include "jinja/runtime.h"

namespace sftrun::templates::jinja {

/// The loop that a body belongs to.
enum class Flow : uint8_t { kNormal, kBreak, kContinue };

/// Executes the statements of a parsed template in one render.
class Interpreter {
 public:
  /// @param context the variables, by symbol of the template; nullopt if the caller gives none
  Interpreter(const Template& parsed, Runtime& runtime, std::vector<std::optional<Value>> context);
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// @throws TemplateError; the line of the runtime is then that of the error
  TaggedText run();

  /// The text of a macro's body (macros call this).
  Value call_macro(const Statement& statement, const FramePtr& closure, const Args& args);

 private:
  Flow run_body(const Body& body, const FramePtr& frame);
  Flow run_statement(const Statement& s, const FramePtr& frame);
  Flow run_if(const Statement& s, const FramePtr& frame);
  Flow run_with(const Statement& s, const FramePtr& frame);
  void run_for(const Statement& s, const Value& items, const FramePtr& frame, int depth0);
  void run_call_block(const Statement& s, const FramePtr& frame);
  TaggedText captured_body(const Statement& s, const FramePtr& frame);
  Value filtered_items(const Statement& s, const Value& items, const FramePtr& frame);
  void define_macro(const Statement& s, const FramePtr& frame);
  void print(const Value& value);

  const Template& template_;
  Runtime& runtime_;
  Output output_;
  Evaluator evaluator_;
  MacroParameters parameters_;
  Symbol loop_;
  Scopes scopes_;
};

}  // namespace sftrun::templates::jinja
