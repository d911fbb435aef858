#pragma once

#include <string_view>

#include "sftrun/config/objectives.h"

namespace sftrun::config {

/// What of a text is trained on where none of its tokens has a label, as a part of a sentence:
/// "one score of each text". Empty: its labelled tokens.
constexpr std::string_view trained_of_texts(HeadKind head) {
  switch (head) {
    case HeadKind::kLanguage:
      return {};
    case HeadKind::kReward:
      return "one score of each text";
    case HeadKind::kClasses:
      return "the scores of each text";
    case HeadKind::kEmbedding:
      return "one embedding of each text";
  }
  return {};
}

}  // namespace sftrun::config
