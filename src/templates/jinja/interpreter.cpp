#include "jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "jinja/macro.h"
#include "jinja/objects.h"
#include "jinja/print.h"

namespace sftrun::templates::jinja {

Frame::Slot* Frame::find(Symbol symbol) {
  for (Frame* frame = this; frame != nullptr; frame = frame->parent.get()) {
    for (Slot& slot : frame->slots) {
      if (slot.symbol == symbol) return &slot;
    }
  }
  return nullptr;
}

size_t Frame::num_slots() const {
  size_t total = 0;
  for (const Frame* frame = this; frame != nullptr; frame = frame->parent.get())
    total += frame->slots.size();
  return total;
}

void Frame::set(Symbol symbol, std::optional<Value> value) {
  for (Slot& slot : slots) {
    if (slot.symbol == symbol) {
      slot.value = std::move(value);
      return;
    }
  }
  slots.push_back({symbol, std::move(value)});
}

class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& interpreter) : interpreter_(interpreter), outer_(interpreter.out_) {
    interpreter_.out_ = &text_;
  }
  ~Capture() { interpreter_.out_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  TaggedText take() { return std::move(text_); }

 private:
  Interpreter& interpreter_;
  TaggedText* outer_;
  TaggedText text_;
};

Interpreter::Interpreter(const Template& parsed, Runtime& runtime,
                         std::vector<std::optional<Value>> context)
    : template_(parsed),
      runtime_(runtime),
      context_(std::move(context)),
      root_(std::make_shared<Frame>()),
      loop_(parsed.symbols.find("loop")),
      caller_(parsed.symbols.find("caller")),
      kwargs_(parsed.symbols.find("kwargs")),
      varargs_(parsed.symbols.find("varargs")) {}

Interpreter::~Interpreter() {
  root_->slots.clear();
  for (const FramePtr& frame : kept_frames_) frame->slots.clear();
}

TaggedText Interpreter::run() {
  for (const Symbol symbol : template_.unset) root_->slots.push_back({symbol, std::nullopt});
  Capture capture(*this);
  run_body(template_.body, root_);
  return capture.take();
}

FramePtr Interpreter::inner_frame(const FramePtr& parent, const std::vector<Symbol>& unset) const {
  auto frame = std::make_shared<Frame>();
  frame->parent = parent;
  runtime_.charge(unset.size() * sizeof(Frame::Slot));
  for (const Symbol symbol : unset) frame->slots.push_back({symbol, std::nullopt});
  return frame;
}

void Interpreter::keep_frame(const FramePtr& frame) {
  if (!kept_frames_.empty() && kept_frames_.back() == frame) return;
  kept_frames_.push_back(frame);
  runtime_.charge(sizeof(Frame));
}

void Interpreter::print(const Value& value) {
  const TaggedText text = to_text(runtime_, value);
  runtime_.charge(text.size());
  out_->append(text);
  runtime_.check_size(out_->size());
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
  line_ = s.line;
  switch (s.kind) {
    case StatementKind::kText:
      runtime_.charge(s.text.size());
      out_->append(s.text, kFromTemplate);
      runtime_.check_size(out_->size());
      break;
    case StatementKind::kPrint:
      for (const ExprPtr& expr : s.expressions) print(evaluate(*expr, frame));
      break;
    case StatementKind::kIf:
      return run_if(s, frame);
    case StatementKind::kFor:
      run_for(s, evaluate(*s.value, frame), frame, 0);
      break;
    case StatementKind::kSet:
      assign(*s.target, evaluate(*s.value, frame), frame);
      break;
    case StatementKind::kSetBlock: {
      Value text = Value::string(captured_body(s, frame));
      assign(*s.target, s.filter ? apply_filters(*s.filter, &text, frame) : text, frame);
      break;
    }
    case StatementKind::kFilterBlock: {
      const Value text = Value::string(captured_body(s, frame));
      print(apply_filters(*s.filter, &text, frame));
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
      run_body(s.body, inner_frame(s.scoped ? frame : root_, s.unset));
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
    if (truthy(evaluate(*s.expressions[i], frame))) return run_body(s.bodies[i], frame);
  }
  return run_body(s.otherwise, frame);
}

Flow Interpreter::run_with(const Statement& s, const FramePtr& frame) {
  const FramePtr inner = inner_frame(frame, s.unset);
  for (size_t i = 0; i < s.targets.size(); ++i)
    assign(*s.targets[i], evaluate(*s.expressions[i], frame), inner);
  return run_body(s.body, inner);
}

TaggedText Interpreter::captured_body(const Statement& s, const FramePtr& frame) {
  Capture capture(*this);
  run_body(s.body, inner_frame(frame, s.unset));
  return capture.take();
}

// ---- Loops

/// The items of `for … if …`, tested one at a time when the loop needs them.
Value Interpreter::filtered_items(const Statement& s, const Value& items, const FramePtr& frame) {
  keep_frame(frame);
  return make_generator("generator", items, 0, [this, &s, frame](Iterator& source, Value& out) {
    for (Value item; source.next(item);) {
      runtime_.step();
      const FramePtr test_frame = inner_frame(frame, {});
      assign(*s.target, item, test_frame);
      if (!truthy(evaluate(*s.condition, test_frame))) continue;
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
    keep_frame(frame);
    recurse = [this, &s, frame](const Value& inner_items, int depth) {
      Capture capture(*this);
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
      iteration->slots.clear();
      for (const Symbol symbol : s.unset) iteration->slots.push_back({symbol, std::nullopt});
    } else {
      iteration = inner_frame(frame, s.unset);
    }
    iteration->set(loop_, loop_value);
    assign(*s.target, item, iteration);
    const Flow flow = run_body(s.body, iteration);
    any_to_its_end = any_to_its_end || flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
    line_ = s.line;
  }
  loop->finish();
  if (!any_to_its_end) run_body(s.otherwise, inner_frame(frame, s.unset_otherwise));
}

// ---- Assignment

void Interpreter::assign(const Expr& target, const Value& value, const FramePtr& frame) {
  runtime_.charge(frame->slots.size());  // each slot is checked
  if (target.kind == ExprKind::kName) return frame->set(target.symbol, value);
  if (target.kind == ExprKind::kTuple) return unpack(target, value, frame);
  auto* name_space = evaluate_name(target, frame).object_as<Namespace>();
  if (name_space == nullptr) fail("cannot assign attribute on non-namespace object");
  name_space->set(target.name, value);
}

void Interpreter::unpack(const Expr& target, const Value& value, const FramePtr& frame) {
  const IteratorPtr iterator = iterate(value);
  if (!iterator) fail(fmt::format("cannot unpack non-iterable {} object", type_name(value)));
  const size_t wanted = target.operands.size();
  std::vector<Value> items;
  for (Value item; items.size() <= wanted && iterator->next(item);) items.push_back(item);
  if (items.size() > wanted) fail(fmt::format("too many values to unpack (expected {})", wanted));
  if (items.size() < wanted) {
    fail(fmt::format("not enough values to unpack (expected {}, got {})", wanted, items.size()));
  }
  for (size_t i = 0; i < wanted; ++i) assign(*target.operands[i], items[i], frame);
}

// ---- Macros

void Interpreter::define_macro(const Statement& s, const FramePtr& frame) {
  keep_frame(frame);
  frame->set(s.symbol, Value::object(std::make_shared<Macro>(*this, s, frame)));
}

void Interpreter::run_call_block(const Statement& s, const FramePtr& frame) {
  keep_frame(frame);
  const Expr& call = *s.value;
  const Value callee = evaluate(*call.operands[0], frame);
  Args args = evaluate_arguments(*call.arguments, frame);
  args.named.emplace_back("caller", Value::object(std::make_shared<Macro>(*this, s, frame)));
  print(call_value(runtime_, callee, args));
}

void Interpreter::bind_parameters(const Statement& s, const Args& args, const FramePtr& frame) {
  const MacroDefinition& macro = *s.macro;
  std::vector<std::pair<std::string, Value>> named = args.named;
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
    frame->set(parameter.symbol, std::move(value));
  }
  if (macro.uses_caller && !macro.explicit_caller) {
    frame->set(caller_, take_named("caller").value_or(Value::undefined("No caller defined")));
  }
  if (macro.uses_kwargs) {
    Dict rest;
    for (auto& [name, value] : named) rest.set(Value::string(name), std::move(value));
    frame->set(kwargs_, Value::dict(std::move(rest)));
  } else if (!named.empty()) {
    fail(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, named.front().first));
  }
  const size_t taken = std::min(args.positional.size(), macro.parameters.size());
  std::vector<Value> extra(args.positional.begin() + static_cast<ptrdiff_t>(taken),
                           args.positional.end());
  if (macro.uses_varargs) {
    frame->set(varargs_, Value::tuple(std::move(extra)));
  } else if (!extra.empty()) {
    fail(fmt::format("macro '{}' takes not more than {} argument(s)", macro.name,
                     macro.parameters.size()));
  }
  for (const Parameter* parameter : missing) {
    frame->set(parameter->symbol, parameter->otherwise
                                      ? evaluate(*parameter->otherwise, frame)
                                      : Value::undefined(fmt::format(
                                            "parameter '{}' was not provided", parameter->name)));
  }
}

Value Interpreter::call_macro(const Statement& s, const FramePtr& closure, const Args& args) {
  const int line = line_;
  const FramePtr frame = inner_frame(closure, s.unset);
  bind_parameters(s, args, frame);
  Capture capture(*this);
  run_body(s.body, frame);
  line_ = line;
  return Value::string(capture.take());
}

}  // namespace sftrun::templates::jinja
