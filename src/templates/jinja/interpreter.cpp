#include "jinja/interpreter.h"

#include "jinja/macro.h"
#include "jinja/objects.h"
#include "jinja/print.h"

namespace sftrun::templates::jinja {

Interpreter::Interpreter(const Template& parsed, Runtime& runtime,
                         std::vector<std::optional<Value>> context)
    : template_(parsed),
      runtime_(runtime),
      output_(runtime),
      evaluator_(parsed.symbols, runtime, std::move(context)),
      parameters_(parsed.symbols),
      loop_(parsed.symbols.find("loop")),
      scopes_(runtime, parsed.unset) {
  runtime_.set_line(1);
}

TaggedText Interpreter::run() {
  Output::Capture capture(output_);
  run_body(template_.body, scopes_.root());
  return capture.take();
}

void Interpreter::print(const Value& value) {
  output_.append(to_text(runtime_, value));
}

// ---- Statements

Flow Interpreter::run_body(const Body& body, const FramePtr& frame) {
  const Runtime::Nesting nesting(runtime_);
  for (const auto& statement : body) {
    const Flow flow = run_statement(*statement, frame);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Flow Interpreter::run_statement(const Statement& s, const FramePtr& frame) {
  runtime_.step();
  runtime_.set_line(s.line);
  switch (s.kind) {
    case StatementKind::kText:
      output_.append(s.text, kFromTemplate);
      break;
    case StatementKind::kPrint:
      for (const ExprPtr& expr : s.expressions) print(evaluator_.evaluate(*expr, *frame));
      break;
    case StatementKind::kIf:
      return run_if(s, frame);
    case StatementKind::kFor:
      run_for(s, evaluator_.evaluate(*s.value, *frame), frame, 0);
      break;
    case StatementKind::kSet:
      evaluator_.assign(*s.target, evaluator_.evaluate(*s.value, *frame), *frame);
      break;
    case StatementKind::kSetBlock: {
      Value text = Value::string(captured_body(s, frame));
      if (s.filter) text = evaluator_.apply_filters(*s.filter, &text, *frame);
      evaluator_.assign(*s.target, text, *frame);
      break;
    }
    case StatementKind::kFilterBlock: {
      const Value text = Value::string(captured_body(s, frame));
      print(evaluator_.apply_filters(*s.filter, &text, *frame));
      break;
    }
    case StatementKind::kMacro:
      define_macro(s, frame);
      break;
    case StatementKind::kCallBlock:
      run_call_block(s, frame);
      break;
    case StatementKind::kGeneration: {
      TaggedText text = captured_body(s, frame);
      text.mark_generation();
      print(Value::string(std::move(text)));
      break;
    }
    case StatementKind::kWith:
      return run_with(s, frame);
    case StatementKind::kBlock:
      run_body(s.body, scopes_.inner(s.scoped ? frame : scopes_.root(), s.unset));
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Flow Interpreter::run_if(const Statement& s, const FramePtr& frame) {
  for (size_t i = 0; i < s.bodies.size(); ++i) {
    if (truthy(evaluator_.evaluate(*s.expressions[i], *frame))) return run_body(s.bodies[i], frame);
  }
  return run_body(s.otherwise, frame);
}

Flow Interpreter::run_with(const Statement& s, const FramePtr& frame) {
  const FramePtr inner = scopes_.inner(frame, s.unset);
  for (size_t i = 0; i < s.targets.size(); ++i)
    evaluator_.assign(*s.targets[i], evaluator_.evaluate(*s.expressions[i], *frame), *inner);
  return run_body(s.body, inner);
}

TaggedText Interpreter::captured_body(const Statement& s, const FramePtr& frame) {
  Output::Capture capture(output_);
  run_body(s.body, scopes_.inner(frame, s.unset));
  return capture.take();
}

// ---- Loops

/// The items of `for … if …`, tested one at a time when the loop needs them.
Value Interpreter::filtered_items(const Statement& s, const Value& items, const FramePtr& frame) {
  scopes_.keep(frame);
  return make_generator("generator", items, 0, [this, &s, frame](Iterator& source, Value& out) {
    for (Value item; source.next(item);) {
      runtime_.step();
      const FramePtr test_frame = scopes_.inner(frame, {});
      evaluator_.assign(*s.target, item, *test_frame);
      if (!truthy(evaluator_.evaluate(*s.condition, *test_frame))) continue;
      out = std::move(item);
      return true;
    }
    return false;
  });
}

void Interpreter::run_for(const Statement& s, const Value& items, const FramePtr& frame,
                          int depth0) {
  const Value source = s.condition ? filtered_items(s, items, frame) : items;
  LoopContext::Recurse recurse;
  if (s.recursive) {
    scopes_.keep(frame);
    recurse = [this, &s, frame](const Value& inner_items, int depth) {
      Output::Capture capture(output_);
      run_for(s, inner_items, frame, depth);
      return Value::string(capture.take());
    };
  }
  const auto loop =
      std::make_shared<LoopContext>(source, iterate_or_fail(source), std::move(recurse), depth0);
  const Value loop_value = Value::object(loop);
  FramePtr iteration;
  bool any_to_its_end = false;  // jinja2 also runs the else branch if no iteration ran to its end
  for (Value item; loop->advance(item);) {
    runtime_.step();
    if (iteration && iteration.use_count() == 1) {
      iteration->reset(s.unset);
    } else {
      iteration = scopes_.inner(frame, s.unset);
    }
    iteration->set(loop_, loop_value);
    evaluator_.assign(*s.target, item, *iteration);
    const Flow flow = run_body(s.body, iteration);
    any_to_its_end = any_to_its_end || flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
    runtime_.set_line(s.line);
  }
  loop->finish();
  if (!any_to_its_end) run_body(s.otherwise, scopes_.inner(frame, s.unset_otherwise));
}

// ---- Macros

void Interpreter::define_macro(const Statement& s, const FramePtr& frame) {
  scopes_.keep(frame);
  frame->set(s.symbol, Value::object(std::make_shared<Macro>(*this, s, frame)));
}

void Interpreter::run_call_block(const Statement& s, const FramePtr& frame) {
  scopes_.keep(frame);
  const Expr& call = *s.value;
  const Value callee = evaluator_.evaluate(*call.operands[0], *frame);
  Args args = evaluator_.evaluate_arguments(*call.arguments, *frame);
  args.named.emplace_back("caller", Value::object(std::make_shared<Macro>(*this, s, frame)));
  print(call_value(runtime_, callee, args));
}

Value Interpreter::call_macro(const Statement& s, const FramePtr& closure, const Args& args) {
  const int line = runtime_.line();
  const FramePtr frame = scopes_.inner(closure, s.unset);
  parameters_.bind(*s.macro, args, evaluator_, *frame);
  Output::Capture capture(output_);
  run_body(s.body, frame);
  runtime_.set_line(line);
  return Value::string(capture.take());
}

}  // namespace sftrun::templates::jinja
