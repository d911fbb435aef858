#include "jinja/builtins.h"

#include <algorithm>
#include <ctime>

#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/print.h"

namespace sftrun::templates::jinja {
namespace {

Value range(Runtime&, const Args& args) {
  const Params params("range", args, {"start", "stop", "step"});
  params.required(0);
  const bool only_stop = !params.given(1);
  const Int start = only_stop ? Int{0} : params.integer(0, 0);
  const Int stop = only_stop ? params.integer(0, 0) : params.integer(1, 0);
  const Int step = params.integer(2, 1);
  if (step == 0) fail("range() arg 3 must not be zero");
  constexpr Int kLimit = Int{1} << 62;
  for (const Int bound : {start, stop, step}) {
    if (bound > kLimit || bound < -kLimit) fail("range() bounds are too large");
  }
  const auto made = std::make_shared<Range>(start, stop, step);
  constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox
  if (made->count() > kMaxRange) {
    fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  }
  return Value::object(made);
}

/// dict(mapping or pairs, **named)
Dict make_dict(Runtime& runtime, const Args& args, const char* function) {
  if (args.positional.size() > 1) fail(std::string(function) + " expected at most 1 argument");
  Dict dict;
  if (!args.positional.empty() && args.positional[0].is_dict()) {
    dict = args.positional[0].dict();
  } else if (!args.positional.empty()) {
    for (const Value& pair : to_vector(runtime, args.positional[0])) {
      std::vector<Value> parts = to_vector(runtime, pair);
      if (parts.size() != 2)
        fail("dictionary update sequence element has the wrong length; 2 is required");
      dict.set(std::move(parts[0]), std::move(parts[1]));
    }
  }
  for (const auto& [name, value] : args.named) dict.set(Value::string(name), value);
  runtime.charge(dict.size() * sizeof(Dict::Entry));
  return dict;
}

Value dict(Runtime& runtime, const Args& args) {
  return Value::dict(make_dict(runtime, args, "dict"));
}

Value make_namespace(Runtime& runtime, const Args& args) {
  auto made = std::make_shared<Namespace>();
  const Dict attributes = make_dict(runtime, args, "namespace");
  for (const auto& [name, value] : attributes.entries()) {
    made->set(to_text(runtime, name).bytes(), value);
  }
  return Value::object(runtime.keep(std::move(made)));
}

Value raise_exception(Runtime& runtime, const Args& args) {
  const Params params("raise_exception", args, {"message"});
  fail("the template raised an error: " + to_text(runtime, params.required(0)).bytes());
}

Value strftime_now(Runtime& runtime, const Args& args) {
  const Params params("strftime_now", args, {"format"});
  std::string format = params.text(0).bytes();
  if (format.empty()) return Value::string("");
  const auto now = static_cast<std::time_t>(runtime.now_unix_s());
  std::tm local{};
  localtime_r(&now, &local);
  std::string out;
  constexpr size_t kGrowth = 64;  // more than any one directive prints
  format.push_back(' ');          // so that an empty result differs from a buffer too small
  out.resize(format.size() * kGrowth);
  runtime.charge(out.size());
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  if (!out.empty()) out.pop_back();
  return Value::string(out);
}

/// cycler(a, b, …): returns its arguments one after the other.
class Cycler : public Object {
 public:
  explicit Cycler(Value items) : items_(std::move(items)) {}
  std::string type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(Runtime&, std::string_view name) override {
    const std::vector<Value>& items = items_.items();
    const auto bound = [this, self = shared_from_this()](bool reset) {
      return Value::object(
          std::make_shared<Function>("cycler", [this, self, reset](Runtime&, const Args&) {
            const Value now = items_.items()[at_];
            at_ = reset ? 0 : (at_ + 1) % items_.items().size();
            return reset ? Value() : now;
          }));
    };
    if (name == "current") return items[at_];
    if (name == "items") return items_;
    if (name == "pos") return Value::integer(static_cast<Int>(at_));
    if (name == "next" || name == "reset") return bound(name == "reset");
    return std::nullopt;
  }
  int depth() const override { return items_.depth() + 1; }

 private:
  Value items_;
  size_t at_ = 0;
};

Value cycler(Runtime&, const Args& args) {
  if (args.positional.empty() || !args.named.empty()) fail("at least one item has to be provided");
  return Value::object(std::make_shared<Cycler>(Value::tuple(args.positional)));
}

/// joiner(sep): nothing when first called, the separator from then on.
Value joiner(Runtime&, const Args& args) {
  const Params params("joiner", args, {"sep"});
  const Value separator = params.given(0) ? *params[0] : Value::string(", ");
  if (separator.depth() > 0) fail("joiner needs a string");
  const auto used = std::make_shared<bool>(false);
  return Value::object(
      std::make_shared<Function>("joiner", [separator, used](Runtime&, const Args&) {
        const bool first = !*used;
        *used = true;
        return first ? Value::string("") : separator;
      }));
}

}  // namespace

std::vector<std::pair<std::string, Value>> builtin_functions() {
  std::vector<std::pair<std::string, Value>> functions;
  const auto add = [&functions](const char* name, Value (*body)(Runtime&, const Args&)) {
    functions.emplace_back(name, Value::object(std::make_shared<Function>(name, body)));
  };
  add("range", range);
  add("dict", dict);
  add("namespace", make_namespace);
  add("cycler", cycler);
  add("joiner", joiner);
  add("raise_exception", raise_exception);
  add("strftime_now", strftime_now);
  return functions;
}

}  // namespace sftrun::templates::jinja
