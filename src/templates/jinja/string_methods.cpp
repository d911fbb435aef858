#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "jinja/format_spec.h"
#include "jinja/methods.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/string_format.h"
#include "jinja/text_ops.h"
#include "jinja/unicode.h"

namespace sftrun::templates::jinja {
namespace {

Value like(const Value& self, TaggedText text) {
  return Value::string(std::move(text), self.str().safe);
}

/// A method without arguments that maps the text to another.
template <TaggedText (*convert)(const TaggedText&)>
Value text_method(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("str method", args, {});
  runtime.charge(self.text().size());
  return like(self, convert(self.text()));
}

TaggedText lower(const TaggedText& text) {
  return with_case(text, unicode::Case::kLower);
}
TaggedText upper(const TaggedText& text) {
  return with_case(text, unicode::Case::kUpper);
}

template <Side side>
Value stripped(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("strip", args, {"chars"});
  runtime.charge(self.text().size());
  std::optional<std::string_view> chars;
  if (params.given_not_none(0)) chars = params.text(0).bytes();
  return like(self, strip(self.text(), chars, side));
}

Value split_result(Runtime& runtime, const Value& self, std::vector<TaggedText> parts) {
  runtime.charge(self.text().size() + parts.size() * sizeof(Value));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (TaggedText& part : parts) items.push_back(like(self, std::move(part)));
  return Value::list(std::move(items));
}

int64_t as_count(Int value) {
  return static_cast<int64_t>(std::clamp<Int>(value, -1, Int{1} << 60));
}

/// From the left in one pass; from the right all of `wanted` may be compared at each place.
template <bool from_right>
void charge_search(Runtime& runtime, const std::string& text, const std::string& wanted) {
  runtime.work(from_right ? text.size() * std::max<size_t>(wanted.size(), 1)
                          : find_cost(text, wanted));
}

template <bool from_right>
Value split_method(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("split", args, {"sep", "maxsplit"});
  const int64_t max_splits = as_count(params.integer(1, -1));
  if (!params.given_not_none(0)) {
    runtime.work(count_words(self.text()) * sizeof(TaggedText));
    return split_result(runtime, self, split_on_space(self.text(), max_splits, from_right));
  }
  const std::string& separator = params.text(0).bytes();
  if (separator.empty()) fail("empty separator");
  charge_search<from_right>(runtime, self.bytes(), separator);
  runtime.work(count_replacements(self.text(), separator, max_splits) * sizeof(TaggedText));
  return split_result(runtime, self, split(self.text(), separator, max_splits, from_right));
}

Value splitlines(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("splitlines", args, {"keepends"});
  const std::string& bytes = self.bytes();  // the ends of other kinds are longer than one byte
  runtime.work(static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(),
                                                 [](unsigned char c) {
                                                   return (c >= 0x0A && c <= 0x0D) ||
                                                          (c >= 0x1C && c <= 0x1E);
                                                 })) *
               sizeof(TaggedText));
  return split_result(runtime, self, split_lines(self.text(), params.flag(0, false)));
}

template <bool from_right>
Value partition(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("partition", args, {"sep"});
  const std::string& separator = params.text(0).bytes();
  if (separator.empty()) fail("empty separator");
  const std::string& bytes = self.bytes();
  runtime.charge(bytes.size());
  charge_search<from_right>(runtime, bytes, separator);
  const size_t found = from_right ? bytes.rfind(separator) : find(bytes, separator);
  const auto part = [&](size_t begin, size_t end) {
    return like(self, self.text().slice(begin, end));
  };
  if (found == std::string::npos) {
    const Value empty = Value::string("");
    return from_right ? Value::tuple({empty, empty, self}) : Value::tuple({self, empty, empty});
  }
  const size_t after = found + separator.size();
  return Value::tuple({part(0, found), part(found, after), part(after, bytes.size())});
}

/// The bytes that optional start and end arguments (in code points) select; nothing if start lies
/// beyond the end.
struct Window {
  size_t begin = 0, end = 0;
  bool valid = true;
};
Window window(const Value& self, const Params& params, size_t first) {
  const Int length = length_of(self);
  const auto bound = [&](size_t index, Int otherwise) {
    const Int at = params.given_not_none(index) ? params.integer(index, 0) : otherwise;
    return at < 0 ? std::max<Int>(at + length, 0) : at;
  };
  const Int start = bound(first, 0), end = std::min(bound(first + 1, length), length);
  if (start > end) return {0, 0, false};
  return {unicode::byte_offset(self.bytes(), static_cast<size_t>(start)),
          unicode::byte_offset(self.bytes(), static_cast<size_t>(end)), true};
}

template <bool at_end>
Value starts_or_ends(Runtime& runtime, const Value& self, const Args& args) {
  const Params params(at_end ? "endswith" : "startswith", args, {"prefix", "start", "end"});
  const Window part = window(self, params, 1);
  const std::string_view text =
      std::string_view(self.bytes()).substr(part.begin, part.end - part.begin);
  const auto matches = [&](const Value& affix) {
    if (affix.is_undefined()) fail(affix.undefined().message);
    if (!affix.is_string())
      fail(fmt::format("{} first arg must be str or a tuple of str, not {}",
                       at_end ? "endswith" : "startswith", type_name(affix)));
    runtime.step();
    return part.valid && (at_end ? text.ends_with(affix.bytes()) : text.starts_with(affix.bytes()));
  };
  const Value& affix = params.required(0);
  if (!affix.is_tuple()) return Value::boolean(matches(affix));
  return Value::boolean(std::any_of(affix.items().begin(), affix.items().end(), matches));
}

template <bool from_right>
std::optional<Int> find_position(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("find", args, {"sub", "start", "end"});
  const std::string& wanted = params.text(0).bytes();
  const Window part = window(self, params, 1);
  if (!part.valid) return std::nullopt;
  charge_search<from_right>(runtime, self.bytes(), wanted);
  const std::string_view text = std::string_view(self.bytes()).substr(0, part.end);
  size_t found = std::string_view::npos;
  if (!from_right) {
    found = find(text, wanted, part.begin);
  } else if (text.size() - part.begin >= wanted.size()) {
    found = text.rfind(wanted);
    if (found != std::string_view::npos && found < part.begin) found = std::string_view::npos;
  }
  if (found == std::string_view::npos) return std::nullopt;
  return static_cast<Int>(unicode::length(text.substr(0, found)));
}

template <bool from_right>
Value find_method(Runtime& runtime, const Value& self, const Args& args) {
  runtime.charge(self.text().size());
  return Value::integer(find_position<from_right>(runtime, self, args).value_or(-1));
}
template <bool from_right>
Value index_method(Runtime& runtime, const Value& self, const Args& args) {
  runtime.charge(self.text().size());
  const auto position = find_position<from_right>(runtime, self, args);
  if (!position) fail("substring not found");
  return Value::integer(*position);
}

Value count(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("count", args, {"sub", "start", "end"});
  runtime.charge(self.text().size());
  const std::string& wanted = params.text(0).bytes();
  charge_search<false>(runtime, self.bytes(), wanted);
  const Window part = window(self, params, 1);
  if (!part.valid) return Value::integer(0);
  const std::string_view text =
      std::string_view(self.bytes()).substr(part.begin, part.end - part.begin);
  if (wanted.empty()) return Value::integer(static_cast<Int>(unicode::length(text)) + 1);
  Int total = 0;
  for (size_t at = find(text, wanted); at != std::string_view::npos;
       at = find(text, wanted, at + wanted.size()))
    ++total;
  return Value::integer(total);
}

Value replace_method(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("replace", args, {"old", "new", "count"});
  TaggedText with = params.text(1);
  if (self.str().safe && !params[1]->str().safe) with = escape_html(runtime, with);
  return like(self, paid_replace(runtime, self.text(), params.text(0).bytes(), with,
                                 as_count(params.integer(2, -1))));
}

Value join_method(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("join", args, {"iterable"});
  const IteratorPtr iterator = iterate_or_fail(params.required(0));
  TaggedText out;
  size_t index = 0;
  for (Value item; iterator->next(item); ++index) {
    if (item.is_undefined() || !item.is_string()) {
      fail(
          fmt::format("sequence item {}: expected str instance, {} found", index, type_name(item)));
    }
    runtime.charge(self.text().size() + item.text().size());
    if (index > 0) out.append(self.text());
    out.append(self.str().safe && !item.str().safe ? escape_html(runtime, item.text())
                                                   : item.text());
    runtime.check_size(out.size());
  }
  return like(self, std::move(out));
}

template <char side>
Value justified(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("justify", args, {"width", "fillchar"});
  FormatSpec spec;
  spec.width = static_cast<int>(std::clamp<Int>(params.integer(0, 0), 0, 1 << 27));
  params.required(0);
  if (params.given(1)) spec.fill = params.text(1).bytes();
  if (unicode::length(spec.fill) != 1)
    fail("The fill character must be exactly one character long");
  if (side == '^') {  // Python's center puts the odd space left where width is odd
    const Int missing = spec.width - length_of(self);
    if (missing > 0 && missing % 2 == 1 && spec.width % 2 == 1) {
      FormatSpec left = spec;
      left.width = static_cast<int>(length_of(self) + missing / 2 + 1);
      const TaggedText padded = pad(runtime, left, self.text(), '>');
      return like(self, pad(runtime, spec, padded, '<'));
    }
  }
  return like(self, pad(runtime, spec, self.text(), side));
}

Value zfill(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("zfill", args, {"width"});
  params.required(0);
  const Int missing = std::min<Int>(params.integer(0, 0), 1 << 27) - length_of(self);
  if (missing <= 0) return self;
  runtime.charge(static_cast<size_t>(missing));
  const bool has_sign = self.bytes().starts_with('+') || self.bytes().starts_with('-');
  TaggedText out = self.text().slice(0, has_sign ? 1 : 0);
  out.append(std::string(static_cast<size_t>(missing), '0'), kFromTemplate);
  out.append(self.text(), has_sign ? 1 : 0, self.text().size());
  return like(self, std::move(out));
}

template <bool suffix>
Value without_affix(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("removeprefix", args, {"affix"});
  runtime.charge(self.text().size());
  const std::string& affix = params.text(0).bytes();
  const size_t size = self.text().size();
  if (suffix && !affix.empty() && self.bytes().ends_with(affix))
    return like(self, self.text().slice(0, size - affix.size()));
  if (!suffix && self.bytes().starts_with(affix))
    return like(self, self.text().slice(affix.size(), size));
  return self;
}

Value expandtabs(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("expandtabs", args, {"tabsize"});
  const Int tab = std::clamp<Int>(params.integer(0, 8), 0, 1 << 16);
  TaggedText out;
  Int column = 0;
  for (size_t at = 0; at < self.text().size();) {
    const auto [code, num_bytes] = decode_char_at(self.bytes(), at);
    if (code == '\t') {
      const Int spaces = tab == 0 ? Int{0} : tab - column % tab;
      runtime.charge(static_cast<size_t>(spaces));
      out.append(std::string(static_cast<size_t>(spaces), ' '), self.text().origin_at(at));
      column += spaces;
    } else {
      out.append(self.text(), at, at + num_bytes);
      column = code == '\n' || code == '\r' ? Int{0} : column + 1;
    }
    at += num_bytes;
  }
  runtime.charge(out.size());
  return like(self, std::move(out));
}

/// str.is…: not empty, and true of every character.
template <bool (*is)(char32_t), bool when_empty = false>
Value all_are(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("str method", args, {});
  runtime.charge(self.text().size());
  if (self.text().empty()) return Value::boolean(when_empty);
  for (size_t at = 0; at < self.text().size();) {
    const auto [code, num_bytes] = decode_char_at(self.bytes(), at);
    if (!is(code)) return Value::boolean(false);
    at += num_bytes;
  }
  return Value::boolean(true);
}

bool is_ascii_code(char32_t code) {
  return code < 0x80;
}
bool is_identifier_code(char32_t code) {
  return code == '_' || unicode::is_alnum(code);
}

Value isidentifier(Runtime& runtime, const Value& self, const Args& args) {
  if (self.text().empty() || unicode::is_decimal(decode_char_at(self.bytes(), 0).code))
    return Value::boolean(false);
  return all_are<is_identifier_code>(runtime, self, args);
}

/// islower and isupper: some cased characters, and all of those of the wanted case.
template <bool lower_wanted>
Value is_of_case(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("str method", args, {});
  runtime.charge(self.text().size());
  bool any = false;
  for (size_t at = 0; at < self.text().size();) {
    const auto [code, num_bytes] = decode_char_at(self.bytes(), at);
    const bool is_lower = unicode::is_lower(code), is_upper = unicode::is_upper(code);
    if (unicode::is_title(code) || (lower_wanted ? is_upper : is_lower))
      return Value::boolean(false);
    any = any || is_lower || is_upper;
    at += num_bytes;
  }
  return Value::boolean(any);
}

Value istitle(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("str method", args, {});
  runtime.charge(self.text().size());
  bool any = false, after_letter = false;
  for (size_t at = 0; at < self.text().size();) {
    const auto [code, num_bytes] = decode_char_at(self.bytes(), at);
    const bool capital = unicode::is_upper(code) || unicode::is_title(code),
               small = unicode::is_lower(code);
    if ((capital && after_letter) || (small && !after_letter)) return Value::boolean(false);
    after_letter = capital || small;
    any = any || after_letter;
    at += num_bytes;
  }
  return Value::boolean(any);
}

Value format_map(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("format_map", args, {"mapping"});
  if (!params.required(0).is_dict()) fail("format_map() argument must be a mapping");
  Args named;
  for (const auto& [key, value] : params[0]->dict().entries()) {
    if (key.is_string()) named.named.emplace_back(key.bytes(), value);
  }
  return brace_format(runtime, self, named);
}

struct StringMethod {
  std::string_view name;
  Method method;
};
constexpr StringMethod kStringMethods[] = {
    {"capitalize", text_method<capitalize>},
    {"casefold", text_method<lower>},
    {"center", justified<'^'>},
    {"count", count},
    {"endswith", starts_or_ends<true>},
    {"expandtabs", expandtabs},
    {"find", find_method<false>},
    {"format", brace_format},
    {"format_map", format_map},
    {"index", index_method<false>},
    {"isalnum", all_are<unicode::is_alnum>},
    {"isalpha", all_are<unicode::is_alpha>},
    {"isascii", all_are<is_ascii_code, true>},
    {"isdecimal", all_are<unicode::is_decimal>},
    {"isdigit", all_are<unicode::is_digit>},
    {"isidentifier", isidentifier},
    {"islower", is_of_case<true>},
    {"isnumeric", all_are<unicode::is_numeric>},
    {"isprintable", all_are<unicode::is_printable, true>},
    {"isspace", all_are<unicode::is_space>},
    {"istitle", istitle},
    {"isupper", is_of_case<false>},
    {"join", join_method},
    {"ljust", justified<'<'>},
    {"lower", text_method<lower>},
    {"lstrip", stripped<Side::kLeft>},
    {"partition", partition<false>},
    {"removeprefix", without_affix<false>},
    {"removesuffix", without_affix<true>},
    {"replace", replace_method},
    {"rfind", find_method<true>},
    {"rindex", index_method<true>},
    {"rjust", justified<'>'>},
    {"rpartition", partition<true>},
    {"rsplit", split_method<true>},
    {"rstrip", stripped<Side::kRight>},
    {"split", split_method<false>},
    {"splitlines", splitlines},
    {"startswith", starts_or_ends<false>},
    {"strip", stripped<Side::kBoth>},
    {"swapcase", text_method<swap_case>},
    {"title", text_method<title_words>},
    {"upper", text_method<upper>},
    {"zfill", zfill},
};

}  // namespace

Method find_string_method(std::string_view name) {
  const auto it = std::lower_bound(
      std::begin(kStringMethods), std::end(kStringMethods), name,
      [](const StringMethod& method, std::string_view wanted) { return method.name < wanted; });
  return it != std::end(kStringMethods) && it->name == name ? it->method : nullptr;
}

}  // namespace sftrun::templates::jinja
