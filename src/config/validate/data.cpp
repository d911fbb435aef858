#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"
#include "validate/checks.h"

namespace sftrun::config::relations {
namespace {

/// Keys of data.fields whose value is a name.
std::vector<std::string> record_fields() {
  std::vector<std::string> fields = record_columns();
  fields.insert(fields.end(), kTurnFields.begin(), kTurnFields.end());
  return fields;
}

constexpr auto kSplits = std::to_array<Rule>({
    {[](Run run) { return !run.data.val.empty() && run.data.val_split > 0; },
     "`data.val` and `data.val_split` are both set",
     {"data.val", "data.val_split"},
     "keep one of them"},
    {[](Run run) {
       const double split = run.data.val_split;
       return split > 1 && split != static_cast<double>(static_cast<int64_t>(split));
     },
     [](Run run) {
       return fmt::format("`data.val_split` is {}; from 1 up it is a number of records",
                          run.data.val_split);
     },
     {"data.val_split"},
     "write a share below 1 or a whole number"},
});

constexpr auto kPacking = std::to_array<Rule>({
    {[](Run run) { return run.data.group_by_length && run.data.packing; },
     "`data.group_by_length` is only for runs without packing",
     {"data.group_by_length"},
     "set data.packing to false, or remove group_by_length"},
    {[](Run run) { return run.data.bin_tokens.value.value_or(0) > run.model.max_seq_len; },
     [](Run run) {
       return fmt::format("`data.bin_tokens` {} is more than `model.max_seq_len` {}",
                          *run.data.bin_tokens.value, run.model.max_seq_len);
     },
     {"data.bin_tokens", "model.max_seq_len"},
     "lower data.bin_tokens or raise model.max_seq_len; train.batch_size, too, gives more tokens "
     "per step"},
});

constexpr auto kStreaming = std::to_array<Rule>({
    {[](Run run) { return run.data.streaming && !run.train.max_steps; },
     "`data.streaming` is set, but `train.max_steps` is not: the length of an epoch is unknown "
     "until the data have been read",
     {"data.streaming"},
     "add, for example, max_steps: 1000 below train"},
    {[](Run run) { return run.data.streaming && run.train.eval_strategy == EvalStrategy::kEpoch; },
     "`train.eval_strategy` is epoch, but streamed data have no epochs",
     {"train.eval_strategy", "data.streaming"},
     "set it to steps, with eval_steps"},
    {[](Run run) { return run.data.streaming && run.train.save_strategy == SaveStrategy::kEpoch; },
     "`train.save_strategy` is epoch, but streamed data have no epochs",
     {"train.save_strategy", "data.streaming"},
     "set it to steps, with save_steps"},
    {[](Run run) { return run.data.streaming && run.data.val_split > 0; },
     "`data.val_split` cannot be used with streamed data",
     {"data.val_split", "data.streaming"},
     "remove val_split, and set data.val to a validation file"},
    {[](Run run) { return run.data.streaming && run.data.group_by_length; },
     "`data.group_by_length` needs the lengths of all examples, which are unknown for streamed "
     "data",
     {"data.group_by_length", "data.streaming"},
     "remove one of them"},
});

bool is_map_of_texts(const nlohmann::ordered_json& json) {
  return json.is_object() &&
         std::all_of(json.begin(), json.end(), [](const auto& item) { return item.is_string(); });
}

/// Names of columns are texts; `roles` is a map of texts.
void check_fields(Checks& checks, const char* key, const nlohmann::ordered_json& fields) {
  const std::vector<std::string> known = record_fields(), optional = optional_columns();
  const auto is_in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const auto& [name, column] : fields.items()) {
    const bool is_roles = name == "roles";
    if (!is_in(known, name) && !is_roles) {
      const bool is_one = kMediaColumns.contains(name + "s");  // image, video
      checks.error(fmt::format("`{}` has the unknown field `{}`", key, excerpt(name)), {key},
                   is_one ? fmt::format("did you mean `{}s`?", name)
                          : fmt::format("known fields: {}, roles; write {{field: column}}",
                                        join(known, ", ")));
    } else if (!is_roles && !column.is_string()) {
      checks.error(fmt::format("`{}` has `{}: {}`; the value must be the name of a column", key,
                               name, shown(column)),
                   {key}, fmt::format("write, for example, {{{}: question}}", name));
    } else if (column == "" && !is_in(optional, name)) {
      checks.error(
          fmt::format("`{}` has `{}: \"\"`, which leaves out that part of the records", key, name),
          {key},
          fmt::format("name its column; only {} can be left out", joined(optional, " and ")));
    } else if (is_roles && !is_map_of_texts(column)) {
      checks.error(
          fmt::format("`{}` has `roles: {}`; the value must be a map of roles", key, shown(column)),
          {key}, "write, for example, roles: {human: user, gpt: assistant}");
    }
  }
}

void check_label_weights(Checks& checks, const nlohmann::ordered_json& weights) {
  const char* key = "data.label_weights";
  for (const auto& [pattern, weight] : weights.items()) {
    const double number = weight.is_number() ? weight.get<double>() : -1;
    if (!(number >= 0 && number <= kMaxLabelWeight))
      checks.error(fmt::format("`{}` is {} for `{}`", key, shown(weight), excerpt(pattern)), {key},
                   fmt::format("write a number from 0 to {}", kMaxLabelWeight));
    if (const std::string problem = regex_problem(pattern); !problem.empty())
      checks.error(fmt::format("`{}` has `{}`, which is not a regular expression: {}", key,
                               excerpt(pattern), problem),
                   {key}, "write it as for Python's re: '(?s)<think>.*?</think>': 0.3");
  }
}

}  // namespace

void check_data(Checks& checks) {
  const DataConfig& data = checks.run().data;
  checks.require(kSplits);
  check_fields(checks, "data.fields", data.fields);
  check_label_weights(checks, data.label_weights);
  for (const DataSource& source : data.train) check_fields(checks, "data.train", source.fields);
  for (const DataSource& source : data.val) check_fields(checks, "data.val", source.fields);
  checks.require(kPacking);
  checks.require(kStreaming);
}

}  // namespace sftrun::config::relations
