#include "settle.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::foreign {
namespace {

/// Whether `source` has the records of one of `sources`: the same path, subset and split.
bool is_among(const Value& source, const Value& sources) {
  const auto text = [](const Value& one, const char* name) {
    const Value* value = value_at(one, name);
    return value == nullptr ? std::string() : value->text;
  };
  return std::any_of(sources.items.begin(), sources.items.end(), [&](const Value& other) {
    return text(source, "path") == text(other, "path") &&
           text(source, "name") == text(other, "name") &&
           text(source, "split") == text(other, "split");
  });
}

/// An adapter beside a base in few bits is qlora, whichever keys say so. Its format is NF4.
void settle_quantised_base(Conversion& conversion) {
  Given* const mode = conversion.find_given("tuning.mode");
  const Given* const quant = conversion.find_given("tuning.quant");
  if (mode == nullptr || quant == nullptr) return;
  std::string& word = mode->assignment.value.text;
  if (word == "lora") {
    word = "qlora";
    mode->from += mode->from.empty() ? quant->from : ", " + quant->from;
  }
  const bool is_implied = word == "qlora" && quant->assignment.value.text == "nf4";
  if (is_implied)
    std::erase_if(conversion.given,
                  [](const Given& one) { return one.assignment.key == "tuning.quant"; });
}

/// Other tools write the checkpoints that a file asks for and no others between them, which
/// save_total_limit would count.
void settle_checkpoints(Conversion& conversion) {
  const Given* const steps = conversion.find_given("train.save_steps");
  if (steps == nullptr || conversion.has("train.save_every")) return;
  Given none = *steps;
  none.assignment.key = "train.save_every";
  none.assignment.value = Value::scalar("0");
  conversion.given.push_back(std::move(none));
}

/// Where the splits of one data set cannot be told apart here, its validation data would be its
/// training data.
void settle_validation(Conversion& conversion) {
  Given* const val = conversion.find_given("data.val");
  const Given* const train = conversion.find_given("data.train");
  if (val == nullptr || train == nullptr) return;
  std::vector<Value>& sources = val->assignment.value.items;
  for (auto source = sources.begin(); source != sources.end();) {
    const Value* path = value_at(*source, "path");
    if (path == nullptr || !conversion.lost_splits.contains(path->text) ||
        !is_among(*source, train->assignment.value)) {
      ++source;
      continue;
    }
    conversion.not_carried.push_back(
        {val->from,
         fmt::format("{}: without the split it is the training data: name other "
                     "records in data.val, or a share in data.val_split",
                     excerpt(path->text)),
         val->assignment.place});
    source = sources.erase(source);
  }
  if (!sources.empty()) return;
  std::erase_if(conversion.given, [](const Given& one) {
    const bool is_default = one.from.empty();
    return one.assignment.key == "data.val" ||
           (is_default && one.assignment.key == "train.load_best_model_at_end");
  });
}

/// What the named file of DeepSpeed says is no default of the tool. A file that cannot be read is an
/// error of the run that names it.
void settle_deepspeed(Conversion& conversion) {
  const std::string path = conversion.given_text("parallel.deepspeed");
  if (path.empty() || !leads_to_file(path)) return;
  try {
    const Conversion named = read_foreign_file(path, Tool::kDeepSpeed);
    std::erase_if(conversion.given, [&](const Given& one) {
      return one.from.empty() && named.has(one.assignment.key);
    });
  } catch (const Error&) {
    return;
  }
}

}  // namespace

void settle(Conversion& conversion) {
  settle_quantised_base(conversion);
  settle_checkpoints(conversion);
  settle_validation(conversion);
  settle_deepspeed(conversion);
  const std::string mode = conversion.given_text("tuning.mode");
  settle_weights_on_host(conversion, mode);
  if (mode != "full" && mode != "partial") return;
  std::erase_if(conversion.given, [&](const Given& one) {
    const Assignment& assignment = one.assignment;
    const bool is_of_lora =
        assignment.key.starts_with("tuning.lora.") || assignment.key == "train.loraplus_lr_ratio";
    if (is_of_lora && !one.from.empty())
      conversion.no_meaning.push_back({one.from, "only used with LoRA", assignment.place});
    return is_of_lora;
  });
}

void settle_weights_on_host(Conversion& conversion, std::string_view mode) {
  if (conversion.weights_on_host.empty()) return;
  const auto take_back = [&](std::string_view field) {
    std::erase_if(conversion.given, [&](const Given& one) { return one.assignment.key == field; });
  };
  const bool trains_adapter = mode == "lora" || mode == "qlora";
  const std::string strategy = conversion.given_text("parallel.strategy");
  const bool keeps_trained = strategy == "zero1" || strategy == "zero2";
  if (mode == "full") take_back("parallel.offload.base");
  if (trains_adapter || keeps_trained) take_back("parallel.offload.params");
  if (keeps_trained && !trains_adapter) {
    for (ImportNote& note : conversion.weights_on_host) {
      note.why = fmt::format(
          "parallel.strategy {} keeps trained parameters on the device; with "
          "fsdp they move",
          strategy);
      conversion.not_carried.push_back(std::move(note));
    }
  }
  conversion.weights_on_host.clear();
}

}  // namespace sftrun::foreign
