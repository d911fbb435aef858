#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "conversion.h"

namespace sftrun::foreign {

/// Applies the rules of a tool's table to each key of a file. A section without a rule of its own is
/// walked if a rule names a key inside of it.
class TableApplication {
 public:
  TableApplication(const ImportTable& table, Conversion& conversion)
      : table_(table), conversion_(conversion) {}

  void run();

 private:
  void walk(const Value& map, const std::string& section);
  void apply_rule(const ImportRule& rule, const SourceKey& key);
  void apply_words(const ImportRule& rule, const SourceKey& key);
  /// A key without a rule.
  void apply_unknown(const SourceKey& key);
  bool has_rule_inside(std::string_view name) const;
  const ImportRule* find_rule(std::string_view name) const;
  std::vector<std::string> key_names() const;

  const ImportTable& table_;
  Conversion& conversion_;
};

}  // namespace sftrun::foreign
