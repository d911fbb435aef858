#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "jinja/value.h"

namespace sftrun::templates::jinja {

/// Limits of one render. A chat template is untrusted code: it must end and fit in memory.
struct Limits {
  size_t max_text_bytes = size_t{64} << 20;  ///< of any one string
  size_t max_work = size_t{1} << 30;         ///< bytes produced in all; a step costs kStepCost
  int max_depth = 900;                       ///< nested evaluations and calls
};
inline constexpr size_t kStepCost = 128;

/// The state that functions, filters and methods share during one render.
class Runtime {
 public:
  Runtime(Limits limits, int64_t now_unix_s) : limits_(limits), now_unix_s_(now_unix_s) {}
  ~Runtime() {
    for (const ObjectPtr& object : kept_) object->release();
  }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Keeps an object that can change, and so be part of a cycle, until the render ends.
  const ObjectPtr& keep(ObjectPtr object) { return kept_.emplace_back(std::move(object)); }

  /// Counts `num_bytes` of a string before it is produced (or elements times their size).
  void charge(size_t num_bytes) {
    check_size(num_bytes);
    work(num_bytes + kStepCost);
  }
  /// Counts bytes that are read.
  void work(size_t num_bytes) {
    if (num_bytes > limits_.max_work - work_) throw WorkLimitError();
    work_ += num_bytes;
  }
  void step() { charge(0); }
  void check_size(size_t num_bytes) const {
    if (num_bytes > limits_.max_text_bytes)
      fail("the template produces a text of more than 64 MiB");
  }
  int64_t now_unix_s() const { return now_unix_s_; }

  /// The line of the template that runs now; 0: none does yet.
  int line() const { return line_; }
  void set_line(int line) { line_ = line; }

  /// Counts one level of nesting for as long as it lives.
  class Nesting {
   public:
    explicit Nesting(Runtime& runtime) : runtime_(runtime) {
      if (++runtime_.depth_ > runtime_.limits_.max_depth) {
        --runtime_.depth_;
        fail("the template nests or recurses too deeply");
      }
    }
    ~Nesting() { --runtime_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Runtime& runtime_;
  };

 private:
  Limits limits_;
  int64_t now_unix_s_;
  std::vector<ObjectPtr> kept_;
  size_t work_ = 0;
  int depth_ = 0, line_ = 0;
};

/// Calls anything callable. @throws TemplateError "'str' object is not callable"
Value call_value(Runtime& runtime, const Value& callee, const Args& args);

/// Parameters of a built-in function, bound as Python binds them.
class Params {
 public:
  /// @throws TemplateError for unknown, repeated or too many arguments.
  Params(std::string_view function, const Args& args,
         std::initializer_list<std::string_view> names);
  /// The argument, or null when it was not given.
  const Value* operator[](size_t index) const { return values_[index]; }
  const Value& required(size_t index) const;
  Int integer(size_t index,
              Int otherwise) const;               ///< @throws TemplateError if it is not an integer
  bool flag(size_t index, bool otherwise) const;  ///< truthiness
  /// @throws TemplateError if it is not a string
  const TaggedText& text(size_t index) const;
  bool given(size_t index) const { return values_[index] != nullptr; }
  bool given_not_none(size_t index) const { return given(index) && !values_[index]->is_none(); }

 private:
  std::string function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

}  // namespace sftrun::templates::jinja
