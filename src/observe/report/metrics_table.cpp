#include "metrics_table.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "sftrun/core/file.h"
#include "sftrun/observe/metrics.h"

namespace sftrun::observe {
namespace {

constexpr size_t kMaxKeys = 64;  // a damaged file must not use up the memory
constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

double value_or_missing(const nlohmann::json& value) {
  return value.is_number() ? value.get<double>() : kMissing;
}

void drop_rows_from(MetricsColumns& columns, int64_t step) {
  const auto first = std::lower_bound(columns.steps.begin(), columns.steps.end(), step);
  const auto kept = static_cast<size_t>(first - columns.steps.begin());
  columns.steps.resize(kept);
  for (auto& [key, column] : columns.values) column.resize(std::min(column.size(), kept));
  for (auto& [key, ranks] : columns.per_rank)
    for (auto& column : ranks) column.resize(std::min(column.size(), kept));
}

/// Appends to a column that may lack earlier rows.
void append(std::vector<double>& column, size_t row, double value) {
  column.resize(row, kMissing);
  column.push_back(value);
}

/// One value for each rank, or the lowest, the median and the highest of many.
std::vector<double> shown_ranks(const nlohmann::json& array) {
  std::vector<double> values;
  for (const auto& value : array) values.push_back(value_or_missing(value));
  if (values.size() <= MetricsColumns::kMaxRanks) return values;
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return {kMissing, kMissing, kMissing};
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

void add_ranks(MetricsColumns& columns, const std::string& key, const nlohmann::json& array,
               size_t row) {
  auto& ranks = columns.per_rank[key];
  const std::vector<double> values = shown_ranks(array);
  if (values.size() > ranks.size()) ranks.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) append(ranks[i], row, values[i]);
  columns.num_ranks[key] = std::max(columns.num_ranks[key], array.size());
}

/// The numbers of a row. Those of an object, such as `eval_losses`, have keys as "eval_losses/NAME".
void add_values(MetricsColumns& columns, const nlohmann::json& object, const std::string& before,
                size_t row) {
  for (const auto& [name, value] : object.items()) {
    const std::string key = before + name;
    const bool is_known = columns.values.contains(key) || columns.per_rank.contains(key);
    const size_t num_keys = columns.values.size() + columns.per_rank.size();
    if (key == "step" || (!is_known && num_keys >= kMaxKeys)) continue;
    if (value.is_array())
      add_ranks(columns, key, value, row);
    else if (value.is_object() && before.empty())
      add_values(columns, value, key + "/", row);
    else if (value.is_number() || value.is_null())
      append(columns.values[key], row, value_or_missing(value));
  }
}

void add_row(MetricsColumns& columns, int64_t step, const nlohmann::json& line) {
  if (!columns.empty() && step <= columns.steps.back()) drop_rows_from(columns, step);
  const size_t row = columns.steps.size();
  columns.steps.push_back(step);
  add_values(columns, line, "", row);
}

/// Fills rows that lack a key, and removes keys without any number.
void complete(MetricsColumns& columns) {
  const auto has_number = [](const std::vector<double>& column) {
    return std::any_of(column.begin(), column.end(),
                       [](double value) { return !std::isnan(value); });
  };
  for (auto& [key, column] : columns.values) column.resize(columns.steps.size(), kMissing);
  for (auto& [key, ranks] : columns.per_rank)
    for (auto& column : ranks) column.resize(columns.steps.size(), kMissing);
  std::erase_if(columns.values, [&](const auto& one) {
    return one.first != "loss" && one.first != "grad_norm" && !has_number(one.second);
  });
  std::erase_if(columns.per_rank, [&](const auto& one) {
    return std::none_of(one.second.begin(), one.second.end(), has_number);
  });
}

}  // namespace

const std::vector<double>* MetricsColumns::find(const std::string& key) const {
  const auto found = values.find(key);
  return found == values.end() ? nullptr : &found->second;
}

MetricsTable read_metrics_table(const std::filesystem::path& metrics) {
  require_no_special_file(metrics);
  MetricsTable table;
  std::ifstream file(metrics, std::ios::binary);
  size_t number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    const bool is_cut = file.eof();  // getline met the end of the file before a line feed
    const auto step = line.is_object() ? line.find("step") : line.end();
    if (step == line.end() || !step->is_number_integer()) {
      if (is_cut)
        table.ends_within_line = true;
      else
        table.unreadable_lines.push_back(number);
      continue;
    }
    add_row(is_evaluation_line(line) ? table.evaluation : table.training, step->get<int64_t>(),
            line);
  }
  complete(table.training);
  complete(table.evaluation);
  return table;
}

}  // namespace sftrun::observe
