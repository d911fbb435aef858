#include "sftrun/core/dataset_card.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun {
namespace {

/// The YAML header of a README, between two lines of dashes, and its first line's number.
struct Head {
  std::string yaml;
  int line = 1;
};

std::optional<Head> head_of(const std::string& text) {
  constexpr std::string_view kDashes = "---";
  const size_t begin = text.find_first_not_of(" \t\r\n\v\f");
  if (begin == std::string::npos || text.compare(begin, kDashes.size(), kDashes) != 0)
    return std::nullopt;
  const size_t first_end = begin + kDashes.size();
  if (first_end >= text.size() || (text[first_end] != '\n' && text[first_end] != '\r'))
    return std::nullopt;
  for (size_t at = text.find("\n---", first_end); at != std::string::npos;
       at = text.find("\n---", at + 1)) {
    const size_t after = text.find_first_not_of(" \t", at + 1 + kDashes.size());
    const bool is_line = after == std::string::npos || text[after] == '\n' || text[after] == '\r';
    if (!is_line || at == first_end) continue;
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<int64_t>(begin), '\n');
    return Head{text.substr(first_end, at + 1 - first_end), static_cast<int>(line)};
  }
  return std::nullopt;
}

class CardReader {
 public:
  CardReader(const std::string& where, int first_line) : where_(where), first_line_(first_line) {}

  DatasetCard read(const YAML::Node& head) const {
    DatasetCard card;
    if (!head.IsMap()) return card;
    if (const YAML::Node configs = head["configs"]; configs && !configs.IsNull()) {
      if (!configs.IsSequence()) refuse(configs, "`configs` is not a list");
      std::unordered_map<std::string, size_t> places;
      for (const YAML::Node& config : configs) add(read_subset(config), card.subsets, places);
    }
    card.described = described(head["dataset_info"]);
    return card;
  }

  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& what) const {
    throw DataError(fmt::format("the data set's subsets cannot be read: {}", what),
                    mark.is_null() ? where_ : fmt::format("{}:{}", where_, mark.line + first_line_),
                    "correct the head of README.md, or name the files that are meant: path: "
                    "'folder/*.jsonl'");
  }

 private:
  [[noreturn]] void refuse(const YAML::Node& node, const std::string& what) const {
    refuse(node.Mark(), what);
  }

  /// A later subset replaces an earlier one of the same name.
  static void add(Subset subset, std::vector<Subset>& subsets,
                  std::unordered_map<std::string, size_t>& places) {
    const auto [place, is_new] = places.emplace(subset.name, subsets.size());
    if (is_new)
      subsets.push_back(std::move(subset));
    else
      subsets[place->second] = std::move(subset);
  }

  Subset read_subset(const YAML::Node& config) const {
    if (!config.IsMap() || !config["config_name"] || !config["config_name"].IsScalar())
      refuse(config, "one of `configs` has no `config_name`");
    Subset subset{.name = config["config_name"].Scalar()};
    if (const YAML::Node flag = config["default"]) subset.is_default = flag.as<bool>(false);
    if (const YAML::Node folder = config["data_dir"]; folder && folder.IsScalar())
      subset.folder = folder.Scalar();
    if (const YAML::Node files = config["data_files"]; files && !files.IsNull())
      subset.splits = read_splits(files, subset.name);
    return subset;
  }

  std::vector<Subset::Split> read_splits(const YAML::Node& files, const std::string& subset) const {
    const bool names_splits = files.IsSequence() && files.size() > 0 &&
                              std::all_of(files.begin(), files.end(), [](const YAML::Node& item) {
                                return item.IsMap() && item.size() == 2 && item["split"] &&
                                       item["split"].IsScalar() && item["path"];
                              });
    std::vector<Subset::Split> splits;
    if (!names_splits) return {{"train", read_patterns(files, subset)}};
    for (const YAML::Node& item : files) {
      Subset::Split split{item["split"].Scalar(), read_patterns(item["path"], subset)};
      const bool again = std::any_of(splits.begin(), splits.end(),
                                     [&](const auto& other) { return other.name == split.name; });
      if (again) {
        refuse(item,
               fmt::format("`data_files` of `{}` names the split `{}` twice", subset, split.name));
      }
      splits.push_back(std::move(split));
    }
    return splits;
  }

  std::vector<std::string> read_patterns(const YAML::Node& node, const std::string& subset) const {
    if (node.IsScalar()) return {node.Scalar()};
    std::vector<std::string> patterns;
    if (node.IsSequence()) {
      for (const YAML::Node& item : node) {
        if (item.IsScalar()) patterns.push_back(item.Scalar());
      }
    }
    if (patterns.empty() || patterns.size() != node.size()) {
      refuse(node, fmt::format("`data_files` of `{}` is neither a pattern, nor a list of patterns, "
                               "nor a list of {{split, path}}",
                               subset));
    }
    return patterns;
  }

  static std::string described(const YAML::Node& info) {
    if (!info) return {};
    const bool is_list = info.IsSequence();
    if (is_list && info.size() != 1) return {};
    const YAML::Node one = is_list ? info[0] : info;
    if (!one.IsMap()) return {};
    const YAML::Node name = one["config_name"];
    return name && name.IsScalar() ? name.Scalar() : "default";
  }

  const std::string& where_;
  int first_line_;
};

}  // namespace

DatasetCard parse_dataset_card(const std::string& text, const std::string& where) {
  const auto head = head_of(text);
  if (!head) return {};
  const CardReader reader(where, head->line);
  try {
    return reader.read(YAML::Load(head->yaml));
  } catch (const YAML::Exception& error) {
    // Invalid YAML without `configs` is ignored.
    if (head->yaml.find("\nconfigs:") == std::string::npos) return {};
    reader.refuse(error.mark, "not valid YAML: " + excerpt(error.msg));
  }
}

}  // namespace sftrun
