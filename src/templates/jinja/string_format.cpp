#include "jinja/string_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "jinja/access.h"
#include "jinja/format_spec.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/text_ops.h"
#include "jinja/unicode.h"

namespace sftrun::templates::jinja {
namespace {

/// The conversions of `format % values`, one after the other.
class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const Value& format, const Value& values)
      : runtime_(runtime), format_(format.text()), safe_(format.str().safe), values_(values) {}

  Value run() {
    const std::string& bytes = format_.bytes();
    while (at_ < bytes.size()) {
      const size_t percent = std::min(bytes.find('%', at_), bytes.size());
      out_.append(format_, at_, percent);
      at_ = percent + 1;
      if (percent < bytes.size()) conversion();
      runtime_.check_size(out_.size());
    }
    const bool all_used = values_.is_tuple() ? used_ >= values_.items().size()
                                             : used_ > 0 || values_.is_dict() || values_.is_list();
    if (!all_used) fail("not all arguments converted during string formatting");
    runtime_.charge(out_.size());
    return Value::string(std::move(out_), safe_);
  }

 private:
  char peek() const {
    if (at_ >= format_.size()) fail("incomplete format");
    return format_.bytes()[at_];
  }

  Value next_value() {
    if (!values_.is_tuple()) {
      if (used_++ > 0) fail("not enough arguments for format string");
      return values_;
    }
    if (used_ >= values_.items().size()) fail("not enough arguments for format string");
    return values_.items()[used_++];
  }

  Value named_value() {
    const size_t close = format_.bytes().find(')', at_);
    if (close == std::string::npos) fail("incomplete format key");
    const std::string key = format_.bytes().substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    if (!values_.is_dict()) fail("format requires a mapping");
    const Value* found = values_.dict().find(key);
    if (found == nullptr) fail(fmt::format("the format's key '{}' is missing", key));
    return *found;
  }

  int count() {
    if (peek() == '*') {
      ++at_;
      const Value value = next_value();
      if (!value.is_integral() || value.integral() > (1 << 26)) fail("* wants int");
      return static_cast<int>(value.integral());
    }
    int number = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      number = number * 10 + (peek() - '0');
      if (number > (1 << 26)) fail("width too big");
    }
    return number;
  }

  void conversion() {
    std::optional<Value> named;
    if (peek() == '(') named = named_value();
    FormatSpec spec;
    bool zero = false;
    for (; std::string_view("-+ 0#").find(peek()) != std::string_view::npos; ++at_) {
      const char flag = peek();
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
      if (flag == '#') spec.alternate = true;
      zero = zero || flag == '0';
    }
    spec.width = count();
    if (peek() == '.') {
      ++at_;
      spec.precision = count();
    }
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++at_;
    spec.type = peek();
    ++at_;
    if (spec.type == '%') {
      out_.append("%", kFromTemplate);
      return;
    }
    const Value value = named ? *named : next_value();
    if (std::string_view("sra").find(spec.type) != std::string_view::npos) return text(spec, value);
    if (spec.type == 'c') return character(spec, value);
    number(spec, value, zero);
  }

  void text(const FormatSpec& spec, const Value& value) {
    TaggedText text = spec.type == 's' ? to_text(runtime_, value) : to_repr(runtime_, value);
    if (safe_ && !(value.is_string() && value.str().safe)) text = escape_html(runtime_, text);
    if (spec.precision >= 0) {
      text = text.slice(0, unicode::byte_offset(text.bytes(), static_cast<size_t>(spec.precision)));
    }
    out_.append(pad(runtime_, spec, text, '>'));
  }

  void character(const FormatSpec& spec, const Value& value) {
    TaggedText text;
    if (value.is_integral()) {
      if (value.integral() < 0 || value.integral() > 0x10FFFF)
        fail("%c arg not in range(0x110000)");
      std::string bytes;
      append_utf8(bytes, static_cast<char32_t>(value.integral()));
      text.append(bytes, value.origin());
    } else if (value.is_string() && unicode::length(value.bytes()) == 1) {
      text = value.text();
    } else {
      fail("%c requires int or char");
    }
    out_.append(pad(runtime_, spec, text, '>'));
  }

  void number(FormatSpec spec, const Value& value, bool zero) {
    if (std::string_view("diuxXoeEfFgG").find(spec.type) == std::string_view::npos) {
      fail(fmt::format("unsupported format character '{}'", spec.type));
    }
    if (!value.is_number()) {
      fail(fmt::format("%{} format: a real number is required, not {}", spec.type,
                       type_name(value)));
    }
    if (zero && spec.align == 0) {
      spec.fill = "0";
      spec.align = '=';
    }
    const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    if (decimal) spec.type = 'd';
    const bool integral = decimal || spec.type == 'x' || spec.type == 'X' || spec.type == 'o';
    if (integral && value.is_float() && !decimal) fail("an integer is required, not float");
    Value shown = value;
    if (integral && value.is_float()) {
      if (!std::isfinite(value.as_double()) || std::fabs(value.as_double()) > 1e36)
        fail("cannot convert float to integer");
      shown = Value::integer(static_cast<Int>(value.as_double()));
    }
    out_.append(format_number(runtime_, spec, shown), value.origin());
  }

  Runtime& runtime_;
  const TaggedText& format_;
  bool safe_;
  const Value& values_;
  TaggedText out_;
  size_t at_ = 0, used_ = 0;
};

/// The fields of `format.format(…)`.
class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const Args& args) : runtime_(runtime), args_(args) {}

  TaggedText run(const TaggedText& format, int depth) {
    if (depth > 2) fail("Max string recursion exceeded");
    TaggedText out;
    const std::string& bytes = format.bytes();
    for (size_t at = 0; at < bytes.size();) {
      const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
      out.append(format, at, brace);
      if (brace == bytes.size()) break;
      if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
        out.append(format, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      if (bytes[brace] == '}') fail("Single '}' encountered in format string");
      const size_t close = closing(bytes, brace);
      out.append(field(format, brace + 1, close, depth));
      runtime_.check_size(out.size());
      at = close + 1;
    }
    runtime_.charge(out.size());
    return out;
  }

 private:
  static size_t closing(const std::string& bytes, size_t open) {
    int level = 0;
    for (size_t at = open; at < bytes.size(); ++at) {
      if (bytes[at] == '{') ++level;
      if (bytes[at] == '}' && --level == 0) return at;
    }
    fail("expected '}' before end of string");
  }

  TaggedText field(const TaggedText& format, size_t begin, size_t end, int depth) {
    const std::string_view text = std::string_view(format.bytes()).substr(begin, end - begin);
    size_t name_end = 0;
    for (bool in_brackets = false; name_end < text.size(); ++name_end) {
      const char c = text[name_end];
      if (c == '[') in_brackets = true;
      if (c == ']') in_brackets = false;
      if (!in_brackets && (c == '!' || c == ':')) break;
    }
    Value value = lookup(text.substr(0, name_end));
    std::string_view rest = text.substr(name_end);
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':'))
        fail("expected ':' after conversion specifier");
      const char conversion = rest[1];
      if (conversion != 's' && conversion != 'r' && conversion != 'a')
        fail("Unknown conversion specifier");
      value =
          Value::string(conversion == 's' ? to_text(runtime_, value) : to_repr(runtime_, value));
      rest.remove_prefix(2);
    }
    std::string specification;
    if (rest.starts_with(':')) {
      specification = run(TaggedText(std::string(rest.substr(1))), depth + 1).bytes();
    }
    return format_value(runtime_, value, specification);
  }

  Value lookup(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first(name.substr(0, end));
    for (size_t at = end; at < name.size();) {
      const bool item = name[at] == '[';
      const size_t stop =
          item ? name.find(']', at) : std::min(name.find_first_of(".[", at + 1), name.size());
      if (stop == std::string_view::npos) fail("Missing ']' in format string");
      const std::string_view part = name.substr(at + 1, stop - at - 1);
      if (part.empty()) fail("Empty attribute in format string");
      value = item ? get_item(runtime_, value,
                              is_number(part) ? Value::integer(std::stoll(std::string(part)))
                                              : Value::string(part))
                   : get_attribute(runtime_, value, part);
      at = item ? stop + 1 : stop;
    }
    return value;
  }

  static bool is_number(std::string_view text) {
    return !text.empty() && text.size() < 18 &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  }

  Value first(std::string_view name) {
    if (name.empty() || is_number(name)) {
      const size_t index =
          name.empty() ? next_++ : static_cast<size_t>(std::stoll(std::string(name)));
      if (index >= args_.positional.size())
        fail("Replacement index " + std::to_string(index) +
             " out of range for positional args tuple");
      return args_.positional[index];
    }
    for (const auto& [known, value] : args_.named) {
      if (known == name) return value;
    }
    fail(fmt::format("the format's key '{}' is missing", name));
  }

  Runtime& runtime_;
  const Args& args_;
  size_t next_ = 0;
};

}  // namespace

Value percent_format(Runtime& runtime, const Value& format, const Value& values) {
  return PercentFormatter(runtime, format, values).run();
}

Value brace_format(Runtime& runtime, const Value& format, const Args& args) {
  return Value::string(BraceFormatter(runtime, args).run(format.text(), 1), format.str().safe);
}

TaggedText paid_replace(Runtime& runtime, const TaggedText& text, std::string_view old,
                        const TaggedText& with, int64_t count) {
  runtime.work(find_cost(text.bytes(), old));
  runtime.charge(text.size() + count_replacements(text, old, count) * with.size());
  return replace(text, old, with, count);
}

TaggedText format_value(Runtime& runtime, const Value& value, std::string_view specification) {
  if (specification.empty()) return to_text(runtime, value);
  const FormatSpec spec = parse_format_spec(specification);
  if (value.is_number() && !(value.is_bool() && spec.type == 's')) {
    return TaggedText(format_number(runtime, spec, value), value.origin());
  }
  if (!value.is_string() || (spec.type != 0 && spec.type != 's') || spec.align == '=') {
    fail(fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
  }
  TaggedText text = value.text();
  if (spec.precision >= 0) {
    text = text.slice(0, unicode::byte_offset(text.bytes(), static_cast<size_t>(spec.precision)));
  }
  return pad(runtime, spec, text, '<');
}

}  // namespace sftrun::templates::jinja
