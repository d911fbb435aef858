#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "jinja/print.h"
#include "jinja/unicode.h"

namespace sftrun::templates::jinja {
namespace {

/// The escape of an ASCII character inside a JSON string, or "" if it stands for itself.
std::string json_escape(char32_t code) {
  switch (code) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\f':
      return "\\f";
    case '\b':
      return "\\b";
    default:
      return code < 0x20 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(code)) : "";
  }
}

std::string ascii_escape(char32_t code) {
  if (code < 0x10000) return fmt::format("\\u{:04x}", static_cast<uint32_t>(code));
  const uint32_t rest = static_cast<uint32_t>(code) - 0x10000;
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
}

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void write(const Value& value) {
    runtime_.charge(out_.size() - charged_);
    runtime_.check_size(charged_ = out_.size());
    if (value.is_string()) {
      write_string(value.text());
    } else if (value.is_sequence()) {
      write_list(value);
    } else if (value.is_dict()) {
      write_dict(value);
    } else {
      out_.append(scalar(value), value.origin());
    }
  }
  TaggedText take() { return std::move(out_); }

 private:
  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is_bool()) return value.boolean() ? "true" : "false";
    if (value.is_int()) return print_integer(value);
    if (value.is_float()) {
      const double number = value.as_double();
      if (std::isnan(number)) return "NaN";
      if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
      return print_float(number);
    }
    fail("Object of type " + type_name(value) + " is not JSON serializable");
  }

  void write_string(const TaggedText& text) {
    const std::string& bytes = text.bytes();
    runtime_.charge(bytes.size());
    out_.append("\"", text.empty() ? kFromTemplate : text.origin_at(0));
    size_t copied = 0;
    for (size_t at = 0; at < bytes.size();) {
      const auto [code, num_bytes] = decode_char_at(bytes, at);
      std::string escaped = json_escape(code);
      if (escaped.empty() && style_.ensure_ascii && code > 0x7E) escaped = ascii_escape(code);
      if (!escaped.empty()) {
        out_.append(text, copied, at);
        out_.append(escaped, text.origin_at(at));
        copied = at + num_bytes;
      }
      at += num_bytes;
    }
    out_.append(text, copied, bytes.size());
    out_.append("\"", text.empty() ? kFromTemplate : text.origin_at(text.size() - 1));
  }

  void new_line(OriginId origin) {
    if (!style_.indent) return;
    out_.append("\n", origin);
    for (int i = 0; i < level_; ++i) out_.append(*style_.indent, origin);
  }

  void write_list(const Value& value) {
    const OriginId origin = value.origin();
    out_.append("[", origin);
    ++level_;
    bool first = true;
    for (const Value& item : value.items()) {
      if (!first) out_.append(style_.item_separator, origin);
      first = false;
      new_line(origin);
      write(item);
    }
    --level_;
    if (!first) new_line(origin);
    out_.append("]", origin);
  }

  void write_dict(const Value& value) {
    const OriginId origin = value.origin();
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : value.dict().entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    }
    out_.append("{", origin);
    ++level_;
    bool first = true;
    for (const Dict::Entry* entry : entries) {
      if (!first) out_.append(style_.item_separator, origin);
      first = false;
      new_line(origin);
      write_key(entry->first);
      out_.append(style_.key_separator, origin);
      write(entry->second);
    }
    --level_;
    if (!first) new_line(origin);
    out_.append("}", origin);
  }

  void write_key(const Value& key) {
    if (key.is_string()) return write_string(key.text());
    if (!key.is_none() && !key.is_number()) {
      fail("keys must be str, int, float, bool or None, not " + type_name(key));
    }
    out_.append("\"" + scalar(key) + "\"", key.origin());
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  TaggedText out_;
  size_t charged_ = 0;
  int level_ = 0;
};

}  // namespace

TaggedText to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.write(value);
  return writer.take();
}

}  // namespace sftrun::templates::jinja
