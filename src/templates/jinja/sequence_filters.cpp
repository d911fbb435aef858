#include <algorithm>
#include <iterator>

#include "jinja/access.h"
#include "jinja/filters.h"
#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/text_ops.h"

namespace sftrun::templates::jinja {
namespace {

Value default_filter(Runtime&, const Value& value, const Args& args) {
  const Params params("default", args, {"default_value", "boolean"});
  if (!value.is_undefined() && !(params.flag(1, false) && !truthy(value))) return value;
  return params.given(0) ? *params[0] : Value::string("");
}

Value length(Runtime&, const Value& value, const Args& args) {
  const Params params("length", args, {});
  return Value::integer(length_of(value));
}

Value list(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("list", args, {});
  return Value::list(to_vector(runtime, value));
}

Value first(Runtime&, const Value& value, const Args& args) {
  const Params params("first", args, {});
  Value item;
  const bool any = iterate_or_fail(value)->next(item);
  return any ? item : Value::undefined("No first item, sequence was empty.");
}

/// The items in reverse order; Python's reversed(). @throws TemplateError without an order or a
/// length
std::vector<Value> reversed(Runtime& runtime, const Value& value) {
  auto* object = value.is_object() ? value.object().get() : nullptr;
  if (value.is_none() || value.is_number() || (object != nullptr && !object->length())) {
    fail("'" + type_name(value) + "' object is not reversible");
  }
  std::vector<Value> items = to_vector(runtime, value);
  std::reverse(items.begin(), items.end());
  return items;
}

Value last(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("last", args, {});
  const std::vector<Value> items = reversed(runtime, value);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.front();
}

Value pass_on(const std::string& type, const Value& source) {
  return make_generator(type, source, 0,
                        [](Iterator& items, Value& out) { return items.next(out); });
}

Value reverse(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("reverse", args, {});
  const Value none;
  if (value.is_string()) return get_slice(runtime, value, none, none, Value::integer(-1));
  if (!iterate(value)) fail("argument must be iterable");
  const bool spent_once = value.is_object() && !value.object()->length();
  if (spent_once) {
    std::vector<Value> items = to_vector(runtime, value);
    std::reverse(items.begin(), items.end());
    return Value::list(std::move(items));
  }
  return pass_on(value.is_list() ? "list_reverseiterator" : "reversed",
                 Value::list(reversed(runtime, value)));
}

// ---- Sorting

Value ignoring_case(const Value& value) {
  return value.is_string() ? Value::string(with_case(value.text(), unicode::Case::kLower)) : value;
}

/// The sort keys of an item: one for each of the comma-separated attributes.
Value sort_key(Runtime& runtime, const Value& item, const Value& attributes, bool case_sensitive) {
  std::vector<Value> keys;
  const auto add = [&](const Value& path) {
    const Value key = get_path(runtime, item, path);
    keys.push_back(case_sensitive ? key : ignoring_case(key));
  };
  if (attributes.is_string()) {
    for (TaggedText& path : split(attributes.text(), ",", -1, false))
      add(Value::string(std::move(path)));
  } else {
    add(attributes);
  }
  return Value::tuple(std::move(keys));
}

/// Stable, by keys made once. Descending order keeps the order of equal items, as in Python.
std::vector<Value> sorted(Runtime& runtime, std::vector<Value> items, std::vector<Value> keys,
                          bool descending) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    runtime.charge(std::min(keys[a].num_nodes(), keys[b].num_nodes()));
    return descending ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  std::vector<Value> result;
  result.reserve(items.size());
  for (const size_t index : order) result.push_back(std::move(items[index]));
  return result;
}

Value sort(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> items = to_vector(runtime, value);
  const Value attribute = params.given(2) ? *params[2] : Value();
  std::vector<Value> keys;
  for (const Value& item : items)
    keys.push_back(sort_key(runtime, item, attribute, params.flag(1, false)));
  return Value::list(sorted(runtime, std::move(items), std::move(keys), params.flag(0, false)));
}

Value dictsort(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string by = params.given(1) ? params.text(1).bytes() : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  if (value.is_undefined()) fail(value.undefined().message);
  if (!value.is_dict()) fail("'" + type_name(value) + " object' has no attribute 'items'");
  std::vector<Value> items, keys;
  for (const auto& [key, item] : value.dict().entries()) {
    items.push_back(Value::tuple({key, item}));
    const Value& wanted = by == "key" ? key : item;
    keys.push_back(params.flag(0, false) ? wanted : ignoring_case(wanted));
  }
  return Value::list(sorted(runtime, std::move(items), std::move(keys), params.flag(2, false)));
}

Value extreme(Runtime& runtime, const Value& value, const Args& args, bool smallest) {
  const Params params(smallest ? "min" : "max", args, {"case_sensitive", "attribute"});
  const IteratorPtr iterator = iterate_or_fail(value);
  const Value attribute = params.given(1) ? *params[1] : Value();
  std::optional<Value> best, best_key;
  for (Value item; iterator->next(item);) {
    runtime.step();
    Value key = get_path(runtime, item, attribute);
    if (!params.flag(0, false)) key = ignoring_case(key);
    if (best && !(smallest ? less(key, *best_key) : less(*best_key, key))) continue;
    best = item;
    best_key = key;
  }
  return best ? *best : Value::undefined("No aggregated item, sequence was empty.");
}
Value min_filter(Runtime& runtime, const Value& value, const Args& args) {
  return extreme(runtime, value, args, true);
}
Value max_filter(Runtime& runtime, const Value& value, const Args& args) {
  return extreme(runtime, value, args, false);
}

Value sum(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("sum", args, {"attribute", "start"});
  const IteratorPtr iterator = iterate_or_fail(value);
  Value total = params.given(1) ? *params[1] : Value::integer(0);
  if (total.is_string()) fail("sum() can't sum strings [use ''.join(seq) instead]");
  for (Value item; iterator->next(item);) {
    runtime.step();
    if (params.given_not_none(0)) item = get_path(runtime, item, *params[0]);
    total = binary(runtime, "+", total, item);
  }
  return total;
}

// ---- Regrouping

Value items(Runtime&, const Value& value, const Args& args) {
  const Params params("items", args, {});
  if (value.is_undefined()) return pass_on("generator", Value::list({}));
  if (!value.is_dict()) fail("Can only get item pairs from a mapping.");
  return pass_on("generator",
                 Value::object(std::make_shared<DictView>(value, DictView::Part::kItems)));
}

Value unique(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("unique", args, {"case_sensitive", "attribute"});
  const Value attribute = params.given(1) ? *params[1] : Value();
  Dict seen;
  std::vector<Value> kept;
  for (const Value& item : to_vector(runtime, value)) {
    Value key = get_path(runtime, item, attribute);
    if (!params.flag(0, false)) key = ignoring_case(key);
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value());
    kept.push_back(item);
  }
  return pass_on("generator", Value::list(std::move(kept)));
}

Value batch(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("batch", args, {"linecount", "fill_with"});
  params.required(0);
  const Int size = params.integer(0, 0);
  std::vector<Value> rows, row;
  for (const Value& item : to_vector(runtime, value)) {
    if (static_cast<Int>(row.size()) == size) {
      rows.push_back(Value::list(std::move(row)));
      row.clear();
    }
    row.push_back(item);
  }
  if (!row.empty()) {
    while (params.given_not_none(1) && static_cast<Int>(row.size()) < size) {
      runtime.charge(sizeof(Value));
      row.push_back(*params[1]);
    }
    rows.push_back(Value::list(std::move(row)));
  }
  return pass_on("generator", Value::list(std::move(rows)));
}

Value slice(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("slice", args, {"slices", "fill_with"});
  params.required(0);
  const Int slices = params.integer(0, 0);
  if (slices == 0) fail("integer division or modulo by zero");
  const std::vector<Value> all = to_vector(runtime, value);
  const auto length = static_cast<Int>(all.size());
  std::vector<Value> columns;
  Int begin = 0;
  for (Int i = 0; i < slices; ++i) {
    const bool extra = i < length % slices;
    const Int end = begin + length / slices + (extra ? 1 : 0);
    std::vector<Value> column(all.begin() + static_cast<ptrdiff_t>(begin),
                              all.begin() + static_cast<ptrdiff_t>(end));
    if (params.given_not_none(1) && !extra) column.push_back(*params[1]);
    runtime.charge(sizeof(Value) * (column.size() + 1));
    columns.push_back(Value::list(std::move(column)));
    begin = end;
  }
  return pass_on("generator", Value::list(std::move(columns)));
}

/// (grouper, list), also reachable by those names.
class Group : public Object {
 public:
  Group(Value grouper, Value list) : pair_(Value::tuple({std::move(grouper), std::move(list)})) {}
  std::string type_name() const override { return "tuple"; }
  std::string repr(Runtime& runtime) const override { return to_repr(runtime, pair_).bytes(); }
  std::optional<Value> attribute(Runtime&, std::string_view name) override {
    if (name == "grouper") return pair_.items()[0];
    if (name == "list") return pair_.items()[1];
    return std::nullopt;
  }
  std::optional<Value> item(const Value& key) override {
    if (!key.is_integral() || key.integral() < -2 || key.integral() > 1) return std::nullopt;
    return pair_.items()[static_cast<size_t>((key.integral() + 2) % 2)];
  }
  std::optional<int64_t> length() override { return 2; }
  bool has_items() const override { return true; }
  IteratorPtr iterate(const ObjectPtr&) override { return jinja::iterate(pair_); }
  int depth() const override { return pair_.depth() + 1; }

 private:
  Value pair_;
};

Value groupby(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("groupby", args, {"attribute", "default", "case_sensitive"});
  params.required(0);
  const bool case_sensitive = params.flag(2, false);
  const auto plain_key = [&](const Value& item) {
    const Value key = get_path(runtime, item, *params[0]);
    return key.is_undefined() && params.given_not_none(1) ? *params[1] : key;
  };
  const auto key_of = [&](const Value& item) {
    return case_sensitive ? plain_key(item) : ignoring_case(plain_key(item));
  };
  std::vector<Value> items = to_vector(runtime, value), keys;
  for (const Value& item : items) keys.push_back(key_of(item));
  items = sorted(runtime, std::move(items), std::move(keys), false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < items.size();) {
    const Value key = key_of(items[begin]);
    size_t end = begin + 1;
    while (end < items.size() && equal(key_of(items[end]), key)) ++end;
    std::vector<Value> members(items.begin() + static_cast<ptrdiff_t>(begin),
                               items.begin() + static_cast<ptrdiff_t>(end));
    const Value grouper = plain_key(members.front());
    groups.push_back(
        Value::object(std::make_shared<Group>(grouper, Value::list(std::move(members)))));
    begin = end;
  }
  return Value::list(std::move(groups));
}

constexpr NamedFilter kSequenceFilters[] = {
    {"length", length},     {"default", default_filter},
    {"list", list},         {"first", first},
    {"last", last},         {"items", items},
    {"d", default_filter},  {"count", length},
    {"dictsort", dictsort}, {"reverse", reverse},
    {"sort", sort},         {"unique", unique},
    {"min", min_filter},    {"max", max_filter},
    {"sum", sum},           {"batch", batch},
    {"slice", slice},       {"groupby", groupby},
};

}  // namespace

Filter find_sequence_filter(std::string_view name) {
  const auto it = std::find_if(std::begin(kSequenceFilters), std::end(kSequenceFilters),
                               [name](const auto& f) { return f.name == name; });
  return it == std::end(kSequenceFilters) ? nullptr : it->filter;
}

}  // namespace sftrun::templates::jinja
