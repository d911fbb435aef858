#include "jinja/print.h"

#include <fmt/format.h>

#include <algorithm>

#include "jinja/unicode.h"
#include "sftrun/core/exact_json.h"

namespace sftrun::templates::jinja {

std::string print_integer(Int value) {
  __extension__ using Unsigned = unsigned __int128;
  Unsigned rest =
      value < 0 ? Unsigned{0} - static_cast<Unsigned>(value) : static_cast<Unsigned>(value);
  std::string digits;
  do {
    digits.push_back(static_cast<char>('0' + static_cast<int>(rest % 10)));
    rest /= 10;
  } while (rest != 0);
  if (value < 0) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string print_integer(const Value& value) {
  return value.is_long() ? value.long_integer() : print_integer(value.integral());
}

std::string print_float(double value) {
  return float_repr(value);
}

namespace {

/// Python's quoting: single quotes, unless only those occur in the text.
void append_quoted(TaggedText& out, const TaggedText& text) {
  const std::string& bytes = text.bytes();
  const bool has_single = bytes.find('\'') != std::string::npos;
  const char quote = has_single && bytes.find('"') == std::string::npos ? '"' : '\'';
  const OriginId first = text.empty() ? kFromTemplate : text.origin_at(0);
  const OriginId last = text.empty() ? kFromTemplate : text.origin_at(text.size() - 1);
  out.append(std::string(1, quote), first);
  for (size_t at = 0; at < bytes.size();) {
    const auto [code, num_bytes] = decode_char_at(bytes, at);
    const OriginId origin = text.origin_at(at);
    if (code == '\\' || code == static_cast<char32_t>(quote)) {
      out.append(std::string("\\") + static_cast<char>(code), origin);
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out.append(code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t", origin);
    } else if (unicode::is_printable(code)) {
      out.append(text, at, at + num_bytes);
    } else {
      const auto number = static_cast<uint32_t>(code);
      out.append(code < 0x100     ? fmt::format("\\x{:02x}", number)
                 : code < 0x10000 ? fmt::format("\\u{:04x}", number)
                                  : fmt::format("\\U{:08x}", number),
                 origin);
    }
    at += num_bytes;
  }
  out.append(std::string(1, quote), last);
}

class ReprWriter {
 public:
  explicit ReprWriter(Runtime& runtime) : runtime_(runtime) {}

  void write(const Value& value) {
    runtime_.charge(out_.size() - charged_);
    runtime_.check_size(charged_ = out_.size());
    const OriginId origin = value.origin();
    if (value.is_string()) {
      runtime_.charge(value.text().size());
      if (value.str().safe) out_.append("Markup(", origin);
      append_quoted(out_, value.text());
      if (value.str().safe) out_.append(")", origin);
    } else if (value.is_sequence()) {
      write_sequence(value);
    } else if (value.is_dict()) {
      write_dict(value);
    } else {
      out_.append(plain(value), origin);
    }
  }
  TaggedText take() { return std::move(out_); }

 private:
  std::string plain(const Value& value) {
    if (value.is_none()) return "None";
    if (value.is_undefined()) return "Undefined";
    if (value.is_bool()) return value.boolean() ? "True" : "False";
    if (value.is_int()) return print_integer(value);
    if (value.is_float()) return print_float(value.as_double());
    const Runtime::Nesting nesting(runtime_);
    return value.object()->repr(runtime_);
  }
  void write_sequence(const Value& value) {
    const bool is_tuple = value.is_tuple();
    out_.append(is_tuple ? "(" : "[", value.origin());
    for (size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) out_.append(", ", value.origin());
      write(value.items()[i]);
    }
    if (is_tuple && value.items().size() == 1) out_.append(",", value.origin());
    out_.append(is_tuple ? ")" : "]", value.origin());
  }
  void write_dict(const Value& value) {
    out_.append("{", value.origin());
    bool first = true;
    for (const auto& [key, item] : value.dict().entries()) {
      if (!first) out_.append(", ", value.origin());
      first = false;
      write(key);
      out_.append(": ", value.origin());
      write(item);
    }
    out_.append("}", value.origin());
  }

  Runtime& runtime_;
  TaggedText out_;
  size_t charged_ = 0;
};

}  // namespace

TaggedText to_text(Runtime& runtime, const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return {};
  return to_repr(runtime, value);
}

TaggedText to_repr(Runtime& runtime, const Value& value) {
  ReprWriter writer(runtime);
  writer.write(value);
  return writer.take();
}

TaggedText escape_html(Runtime& runtime, const TaggedText& text) {
  TaggedText out;
  size_t copied = 0;
  const std::string& bytes = text.bytes();
  for (size_t at = 0; at < bytes.size(); ++at) {
    const char c = bytes[at];
    const char* entity = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '"'  ? "&#34;"
                         : c == '\'' ? "&#39;"
                                     : nullptr;
    if (entity == nullptr) continue;
    out.append(text, copied, at);
    out.append(entity, text.origin_at(at));
    copied = at + 1;
  }
  out.append(text, copied, text.size());
  runtime.charge(out.size());
  return out;
}

}  // namespace sftrun::templates::jinja
