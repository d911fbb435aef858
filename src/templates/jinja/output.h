#pragma once

#include <string_view>
#include <utility>

#include "jinja/runtime.h"

namespace sftrun::templates::jinja {

/// The text that a template prints: into the innermost capture, of which there must be one.
class Output {
 public:
  explicit Output(Runtime& runtime) : runtime_(runtime) {}

  void append(const TaggedText& text) { append(text.size(), text); }
  void append(std::string_view text, OriginId origin) { append(text.size(), text, origin); }

  /// Receives what is printed while it lives.
  class Capture {
   public:
    explicit Capture(Output& output) : output_(output), outer_(output.text_) {
      output_.text_ = &text_;
    }
    ~Capture() { output_.text_ = outer_; }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
    TaggedText take() { return std::move(text_); }

   private:
    Output& output_;
    TaggedText* outer_;
    TaggedText text_;
  };

 private:
  template <class... Text>
  void append(size_t num_bytes, const Text&... text) {
    runtime_.charge(num_bytes);
    text_->append(text...);
    runtime_.check_size(text_->size());
  }

  Runtime& runtime_;
  TaggedText* text_ = nullptr;
};

}  // namespace sftrun::templates::jinja
