#include "sftrun/config/field_value.h"

#include <fmt/format.h>

#include "choices.h"
#include "sftrun/core/error.h"

namespace sftrun::config {

std::optional<Complaint> try_value(std::string_view field, const Value& value,
                                   nlohmann::ordered_json& result) {
  RunConfig scratch;
  Binding binding = bind(scratch);
  Field* found = binding.find(std::string(field));
  SFTRUN_CHECK(found != nullptr);
  if (auto complaint = found->assign(value)) {
    if (complaint->show_takes) complaint->what += fmt::format("; it takes {}", found->takes());
    using enum FieldType;  // of other types other tools write other values
    const bool is_number = found->type == kInt || found->type == kAutoInt || found->type == kNumber;
    if (is_number && complaint->fix.empty())
      complaint->fix =
          fmt::format("write, for example, {}; it becomes {} here", found->example, field);
    return complaint;
  }
  result = found->get();
  return std::nullopt;
}

nlohmann::ordered_json canonical(std::string_view field, nlohmann::ordered_json value) {
  if (field != "parallel.strategy") return value;
  for (const StrategyRow& row : kStrategies)
    if (row.same && value == row.name) return strategy_row(*row.same).name;
  return value;
}

bool are_same(std::string_view field, const Value& a, const Value& b) {
  nlohmann::ordered_json first, second;
  if (try_value(field, a, first) || try_value(field, b, second)) return true;
  return canonical(field, first) == canonical(field, second);
}

}  // namespace sftrun::config
