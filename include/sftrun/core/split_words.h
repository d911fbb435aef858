#pragma once

#include <string>
#include <vector>

namespace sftrun {

/// The words by which names of files and folders tell a split of a data set:
/// https://huggingface.co/docs/hub/datasets-file-names-and-splits
inline std::vector<std::string> words_of_split(const std::string& split) {
  if (split == "train") return {"train", "training"};
  if (split == "validation") return {"validation", "valid", "val", "dev"};
  if (split == "test") return {"test", "testing", "eval", "evaluation"};
  return {split};
}

}  // namespace sftrun
