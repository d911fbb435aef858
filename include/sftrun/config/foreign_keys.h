#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/table_row.h"
#include "sftrun/config/value.h"

/// Keys of other trainers' configurations (transformers, TRL, PEFT, bitsandbytes, Axolotl,
/// LLaMA-Factory, torchtune, Unsloth, Accelerate), and what to write instead. The table is in
/// foreign_keys.yaml.
namespace sftrun::config {

struct ForeignKey {
  /// The last part of the key ("optim"), the whole key ("data.path"), or the beginning of many
  /// ("wandb_*").
  std::string name;
  std::string field;  ///< the field here that the key is about; empty: none
  std::string fix;    ///< the fix line of the error
  TextPairs values;   ///< the fix line, if it depends on the value
};

/// The table. It is read when it is first needed: few configurations have such a key.
const std::vector<ForeignKey>& foreign_keys();
/// A key for each name in the rows of a table.
/// @throws ConfigError if a row says not what to do, or says it twice
std::vector<ForeignKey> read_foreign_keys(std::string_view table);

/// Searches whole keys first, then last parts, then prefixes. nullptr: not in the table.
const ForeignKey* find_foreign_key(std::string_view key);
/// The fix line.
std::string advice_on(const ForeignKey& foreign, const Value& value);

}  // namespace sftrun::config
