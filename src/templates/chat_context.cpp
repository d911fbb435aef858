#include "chat_context.h"

#include <array>

#include "jinja/builtins.h"
#include "sftrun/core/exact_json.h"

namespace sftrun::templates {

using jinja::Dict;
using jinja::OriginId;
using jinja::Value;

namespace {

Value from_json(const Json& json, OriginId origin, int depth = 0) {
  if (depth > jinja::kMaxValueDepth) jinja::fail("a message or variable is nested too deeply");
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::boolean(json.get<bool>()).with_origin(origin);
    case Json::value_t::number_integer:
      return Value::integer(json.get<int64_t>(), origin);
    case Json::value_t::number_unsigned:
      return Value::integer(json.get<uint64_t>(), origin);
    case Json::value_t::number_float:
      return Value::number(json.get<double>(), origin);
    case Json::value_t::string:
      return Value::string(json.get_ref<const std::string&>(), origin);
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(from_json(item, origin, depth + 1));
      return Value::list(std::move(items)).with_origin(origin);
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items())
        dict.set(Value::string(key, origin), from_json(item, origin, depth + 1));
      return Value::dict(std::move(dict)).with_origin(origin);
    }
    case Json::value_t::binary:  // of core/exact_json.h
      if (is_bytes(json)) jinja::fail("bytes of a table are no text");
      return is_kept_integer(json) ? Value::integer_of(number_text(json), origin)
                                   : Value::number(number_value(json), origin);
    case Json::value_t::null:
    case Json::value_t::discarded:
      break;
  }
  return Value().with_origin(origin);
}

/// The message's reasoning and its key. Most templates read the first key.
std::optional<std::string> reasoning_key(const Json& message) {
  for (const char* key : {"reasoning_content", "thinking", "reasoning"}) {
    const auto it = message.find(key);
    if (it != message.end() && !it->is_null()) return key;
  }
  return std::nullopt;
}

}  // namespace

ChatContext::ChatContext(const jinja::SymbolTable& symbols, const Json& messages,
                         size_t num_messages, const RenderOptions& options)
    : symbols_(symbols), variables_(symbols.size()) {
  if (!messages.is_array()) jinja::fail("messages must be a list");
  for (auto& [name, function] : jinja::builtin_functions()) set(name, std::move(function));
  const std::array<std::pair<const char*, const std::string&>, 4> tokens = {
      {{"bos_token", options.bos_token},
       {"eos_token", options.eos_token},
       {"unk_token", options.unk_token},
       {"pad_token", options.pad_token}}};
  for (const auto& [name, token] : tokens) {
    if (!token.empty()) set(name, Value::string(token, jinja::kFromOther));
  }
  set("tools", Value());
  set("documents", Value());
  for (const auto& [name, value] : options.kwargs.items())
    set(name, from_json(value, jinja::kFromOther));
  if (!options.tools.is_null()) set("tools", from_json(options.tools, jinja::kFromOther));
  set("add_generation_prompt", Value::boolean(options.add_generation_prompt));
  std::vector<Value> list;
  for (size_t i = 0; i < std::min(num_messages, messages.size()); ++i) {
    list.push_back(message_value(messages[i], static_cast<int32_t>(i)));
  }
  set("messages", Value::list(std::move(list)).with_origin(jinja::kFromOther));
}

void ChatContext::set(const std::string& name, Value value) {
  const jinja::Symbol symbol = symbols_.find(name);
  if (symbol >= 0) variables_[static_cast<size_t>(symbol)] = std::move(value);
}

OriginId ChatContext::message_origin(int32_t message, const std::string& field) {
  message_origins_.push_back({Origin::Kind::kMessage, message, field, false});
  return jinja::kFirstMessageOrigin + static_cast<OriginId>(message_origins_.size() - 1);
}

Value ChatContext::message_value(const Json& message, int32_t index) {
  if (!message.is_object())
    jinja::fail("messages[" + std::to_string(index) + "] must be an object with role and content");
  const OriginId whole = message_origin(index, "");
  const auto reasoning = reasoning_key(message);
  Dict dict;
  const auto add = [&](const std::string& key, const std::string& source) {
    dict.set(Value::string(key, whole),
             from_json(message.at(source), message_origin(index, source)));
  };
  if (reasoning) add("thinking", message.contains("thinking") ? "thinking" : *reasoning);
  for (const auto& [key, value] : message.items()) add(key, key);
  if (reasoning) add("reasoning_content", *reasoning);
  return Value::dict(std::move(dict)).with_origin(whole);
}

Rendered ChatContext::rendered(const jinja::TaggedText& text) const {
  Rendered result;
  result.text = text.bytes();
  uint32_t begin = 0;
  for (const auto& [end, id] : text.runs()) {
    const OriginId source = id & ~jinja::kInGeneration;
    Origin origin;
    if (source >= jinja::kFirstMessageOrigin)
      origin = message_origins_[source - jinja::kFirstMessageOrigin];
    if (source == jinja::kFromOther) origin.kind = Origin::Kind::kOther;
    origin.in_generation = (id & jinja::kInGeneration) != 0;
    if (!result.origins.empty() && result.origins.back().origin == origin) {
      result.origins.back().end = end;
    } else {
      result.origins.push_back({begin, end, std::move(origin)});
    }
    begin = end;
  }
  return result;
}

}  // namespace sftrun::templates
