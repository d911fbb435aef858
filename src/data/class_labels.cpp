#include "class_labels.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "bad_records.h"
#include "likely_columns.h"
#include "nulls.h"
#include "record.h"
#include "sftrun/config/record_formats.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/record_error.h"
#include "source_records.h"

namespace sftrun::data {
namespace {

using config::kLabelColumn;
using config::kLabelsColumn;
using config::ProblemType;

/// A cell of a table that holds a list.
Json parsed_list(const Json& value) {
  if (!value.is_string()) return value;
  const std::string_view text = trim(value.get_ref<const std::string&>());
  if (!text.starts_with('[')) return value;
  Json list = parse_json_text(text);
  return list.is_array() ? list : value;
}

/// The column with the classes, and its value; null: the record has none.
struct ClassValue {
  const char* column = nullptr;
  Json value;
};
ClassValue class_value(const Json& record) {
  for (const char* column : {kLabelsColumn, kLabelColumn})
    if (const Json* value = value_of(record, column)) return {column, parsed_list(*value)};
  return {};
}

/// A class number, also of a column with gaps (1.0) or of a text; nullopt: it is none.
std::optional<int64_t> as_number(const Json& value) {
  constexpr double kMost = 1 << 20;
  Json number =
      value.is_string() ? parse_json_text(trim(value.get_ref<const std::string&>())) : value;
  if (!number.is_number()) return std::nullopt;
  const auto wide = number.get<double>();
  if (!(wide >= 0 && wide <= kMost) || wide != std::floor(wide)) return std::nullopt;
  return static_cast<int64_t>(wide);
}

constexpr const char* kNumbersOfClasses =
    "numbers of classes begin at 0: write 0 and 1 for -1 and 1, or names as texts";

/// A name that files and tables can have.
bool is_class_name(const std::string& name) {
  return !trim(name).empty() && std::none_of(name.begin(), name.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7F;
  });
}

[[noreturn]] void refuse_value(const ClassValue& of, const Json& value,
                               const std::vector<std::string>& classes, const std::string& where) {
  constexpr size_t kShown = 8;
  std::vector<std::string> shown(
      classes.begin(), classes.begin() + static_cast<ptrdiff_t>(std::min(kShown, classes.size())));
  const bool is_below = value.is_number() && value < 0;
  const std::string known =
      fmt::format("the classes are {}{} (data.classes), with the numbers from 0", join(shown, ", "),
                  classes.size() > kShown ? ", …" : "");
  throw DataError(fmt::format("\"{}\" has {}, which is none of the {} classes", of.column,
                              excerpt(to_json_text(value)), classes.size()),
                  where, is_below ? fmt::format("{}; {}", known, kNumbersOfClasses) : known);
}

float number_of(const ClassValue& of, const Json& value, const std::vector<std::string>& classes,
                const std::string& where) {
  const std::string name = value.is_string()    ? value.get<std::string>()
                           : value.is_boolean() ? (value.get<bool>() ? "true" : "false")
                                                : std::string();
  const auto named = std::find(classes.begin(), classes.end(), name);
  if (!name.empty() && named != classes.end()) return static_cast<float>(named - classes.begin());
  if (value.is_string() && !is_class_name(name))
    throw DataError(
        fmt::format("\"{}\" has {}, which is no name of a class", of.column,
                    name.empty() ? std::string("an empty text") : excerpt(to_json_text(value))),
        where, "write a name of visible characters, or a number, or leave the record out");
  const auto number =
      value.is_boolean() ? std::optional<int64_t>(value.get<bool>() ? 1 : 0) : as_number(value);
  if (!number || *number >= std::ssize(classes)) refuse_value(of, value, classes, where);
  return static_cast<float>(*number);
}

/// True and false, or 1.0 and 0.0; not 1 and 0, which are numbers of classes.
bool looks_like_flags(const Json& list) {
  return !list.empty() && std::all_of(list.begin(), list.end(), [](const Json& one) {
    return one.is_boolean() || (one.is_number_float() && (one == 0 || one == 1));
  });
}

/// One flag for each class.
bool are_flags(const Json& list, size_t num_classes) {
  if (list.size() != num_classes) return false;
  return looks_like_flags(list);
}

}  // namespace

bool has_class(const Json& record) {
  return class_value(record).column != nullptr;
}

const Json& with_text_of_prompt(const Json& record, Json& room) {
  const Json* prompt = value_of(record, "prompt");
  if (prompt == nullptr || value_of(record, "completion") != nullptr) return record;
  for (const char* other : {"text", "messages", "conversations", "instruction"})
    if (value_of(record, other) != nullptr) return record;
  room = record;
  room[prompt->is_array() ? "messages" : "text"] = *prompt;
  room.erase("prompt");
  return room;
}

void refuse_unclassed(const Json& record, const config::ObjectiveInfo& reader,
                      const std::string& where) {
  refuse_token_ids(record, where);
  if (!has_class(record)) {
    throw RecordError(
        fmt::format("the record has no \"label\" or \"labels\", which train.objective {} needs "
                    "(its keys: {})",
                    reader.name, keys_of(record)),
        where,
        "name the column: data.fields: {label: COLUMN}, or {labels: COLUMN} for several classes",
        "write \"label\": the name of a class, or its number");
  }
  throw RecordError(
      fmt::format("the record has a label, and no text that it is the class of (its keys: {})",
                  keys_of(record)),
      where, "name the column: data.fields: {text: COLUMN}, {prompt: COLUMN} or {messages: COLUMN}",
      "write \"text\", \"prompt\" or \"messages\"");
}

std::vector<float> class_numbers(const Json& record, const std::vector<std::string>& classes,
                                 ProblemType problem, const std::string& where) {
  const ClassValue of = class_value(record);
  if (of.column == nullptr)
    throw DataError("the record has no \"label\"", where,
                    "write \"label\": the name of a class, or its number; or leave the record out");
  std::vector<float> numbers;
  if (!of.value.is_array()) {
    numbers.push_back(number_of(of, of.value, classes, where));
  } else if (are_flags(of.value, classes.size()) && problem == ProblemType::kMultiLabel) {
    for (size_t i = 0; i < classes.size(); ++i)
      if (of.value[i] == true || of.value[i] == 1) numbers.push_back(static_cast<float>(i));
  } else if (problem == ProblemType::kMultiLabel && looks_like_flags(of.value)) {
    throw DataError(fmt::format("\"{}\" has {} flags, and there are {} classes", of.column,
                                of.value.size(), classes.size()),
                    where,
                    "write a flag for each class in the order of data.classes, or the names or "
                    "numbers of the text's classes");
  } else {
    for (const Json& one : of.value) numbers.push_back(number_of(of, one, classes, where));
    std::sort(numbers.begin(), numbers.end());
    if (std::adjacent_find(numbers.begin(), numbers.end()) != numbers.end())
      throw DataError(
          fmt::format("\"{}\" has a class twice", of.column), where,
          "name each class once; flags of all classes are true and false, or 1.0 and 0.0");
  }
  if (problem != ProblemType::kMultiLabel && numbers.size() != 1)
    throw DataError(
        fmt::format("\"{}\" has {} classes, and train.problem_type is single_label_classification",
                    of.column, numbers.size()),
        where, "set train.problem_type to multi_label_classification, or give each text one class");
  return numbers;
}

float margin_of(const Json& record, const std::string& where) {
  const Json* value = value_of(record, config::kMarginColumn);
  if (value == nullptr) return 0;
  const Json number =
      value->is_string() ? parse_json_text(trim(value->get_ref<const std::string&>())) : *value;
  if (!number.is_number() || !std::isfinite(number.get<double>()))
    throw DataError(
        fmt::format("\"margin\" must be a number, not {}", excerpt(to_json_text(*value))), where,
        "write a number, or leave the key out");
  return static_cast<float>(number.get<double>());
}

namespace {

/// What the records have as classes.
class ClassCollector {
 public:
  void add(const Json& record, const std::string& where) {
    const ClassValue of = class_value(record);
    if (of.column == nullptr) return;
    has_several_ =
        has_several_ || of.column == std::string_view(kLabelsColumn) || of.value.is_array();
    if (!of.value.is_array()) return add_value(of.value, where);
    if (looks_like_flags(of.value)) {
      num_flags_ = std::max(num_flags_, std::ssize(of.value));
      return;
    }
    for (const Json& one : of.value) add_value(one, where);
  }

  /// One number that is wrong makes a head with a row for each number below it.
  std::string remark_of_numbers(int64_t num_classes) const {
    constexpr int64_t kMayBeMissing = 8;
    if (most_ + 1 != num_classes || most_ < 2 * std::ssize(numbers_) + kMayBeMissing) return "";
    return fmt::format(
        "the numbers of classes in the data go up to {} ({}), and {} of the {} classes have no "
        "record; each takes a row of the head. If a number is wrong, correct it, or set "
        "data.classes to the names",
        most_, most_at_, num_classes - std::ssize(numbers_), num_classes);
  }

  FoundClasses found(const config::RunConfig& config, const std::vector<std::string>& known) const {
    const ProblemType asked = config.train.problem_type;
    FoundClasses found{
        .names = config.data.classes.empty() ? names_for(config, known) : config.data.classes,
        .problem = asked != ProblemType::kAuto ? asked
                   : has_several_              ? ProblemType::kMultiLabel
                                               : ProblemType::kSingleLabel};
    if (config.data.classes.empty()) found.remark = remark_of_numbers(std::ssize(found.names));
    if (found.names.size() > 1) return found;
    throw DataError(
        fmt::format("there is one class, {}, and a classifier chooses between several",
                    excerpt(found.names.front())),
        config::names_of(config.data.train),
        "name the other classes, too: data.classes: [no, yes]; or use data that have them");
  }

 private:
  std::vector<std::string> names_for(const config::RunConfig& config,
                                     const std::vector<std::string>& known) const {
    const bool has_numbers = most_ >= 0 || (num_flags_ > 0 && names_.empty());
    if (has_numbers && !names_.empty())
      throw DataError(
          fmt::format("some records have names of classes as labels, and others numbers: "
                      "{} is a name",
                      excerpt(*names_.begin())),
          first_name_, "use one of both, or set data.classes to the names");
    if (has_numbers) return numbered(std::max(most_ + 1, num_flags_), known);
    if (has_booleans_ && names_.empty()) return {"false", "true"};
    if (names_.empty() && !first_odd_.empty())
      throw DataError(fmt::format("no label is a class; the first is {}", first_odd_),
                      first_odd_at_, kNumbersOfClasses);
    if (names_.empty())
      throw DataError(
          "no record has a \"label\" or \"labels\", which train.objective classify needs",
          config::names_of(config.data.train),
          "name the column: data.fields: {label: COLUMN}, or {labels: COLUMN} for several classes");
    const bool are_known = std::all_of(names_.begin(), names_.end(), [&](const std::string& name) {
      return std::find(known.begin(), known.end(), name) != known.end();
    });
    return are_known ? known : std::vector<std::string>(names_.begin(), names_.end());
  }
  static std::vector<std::string> numbered(int64_t count, const std::vector<std::string>& known) {
    if (count <= std::ssize(known)) return known;
    std::vector<std::string> names;
    for (int64_t i = 0; i < count; ++i) names.push_back(fmt::format("LABEL_{}", i));
    return names;
  }
  void add_value(const Json& value, const std::string& where) {
    if (value.is_boolean()) {
      has_booleans_ = true;
    } else if (const auto number = as_number(value)) {
      if (*number > most_) most_at_ = where;
      most_ = std::max(most_, *number);
      numbers_.insert(*number);
    } else if (value.is_string() && is_class_name(value.get_ref<const std::string&>())) {
      if (names_.empty()) first_name_ = where;
      names_.insert(value.get<std::string>());
    } else if (value.is_number() && first_odd_.empty()) {
      first_odd_ = excerpt(to_json_text(value));
      first_odd_at_ = where;
    }
  }

  std::set<std::string> names_;
  std::set<int64_t> numbers_;
  std::string first_name_, most_at_, first_odd_, first_odd_at_;
  int64_t most_ = -1, num_flags_ = 0;
  bool has_booleans_ = false, has_several_ = false;
};

}  // namespace

namespace {

void require_names(const std::vector<std::string>& classes) {
  const auto wrong = std::find_if_not(classes.begin(), classes.end(), is_class_name);
  if (wrong != classes.end())
    throw ConfigError(wrong->empty() ? std::string("`data.classes` has an empty name")
                                     : fmt::format("`data.classes` has the name {}",
                                                   excerpt(to_json_text(*wrong))),
                      "data.classes", "write names of visible characters");
  const std::set<std::string> distinct(classes.begin(), classes.end());
  if (distinct.size() == classes.size() && classes.size() != 1) return;
  throw ConfigError(
      classes.size() == 1 ? "`data.classes` has one class" : "`data.classes` has a name twice",
      "data.classes", "name each class once, and two at least");
}

}  // namespace

FoundClasses find_classes(const config::RunConfig& config, const std::vector<std::string>& known) {
  require_names(config.data.classes);
  if (!config.data.classes.empty() && config.train.problem_type != ProblemType::kAuto)
    return {config.data.classes, config.train.problem_type};
  ClassCollector collector;
  const auto read = [&](const std::vector<config::DataSource>& sources, SplitRole role) {
    for (const config::DataSource& source : sources) {
      SourceRecords records(config, source, role);
      while (const auto block = records.next()) {
        for (size_t i = 0; i < block->count; ++i) {
          const std::string where = records.where(*block, i);
          try {
            collector.add(records.parse(*block, i).record, where);
          } catch (const DataError&) {  // reported when the data are tokenised
          }
        }
      }
    }
  };
  read(config.data.train, SplitRole::kTrain);
  read(config.data.val, SplitRole::kValidation);
  return collector.found(config, known);
}

}  // namespace sftrun::data
