#pragma once

#include <cstdint>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/data/example.h"
#include "sftrun/data/sequence.h"

namespace sftrun::data {

/// What training does with a sequence.
enum class Fate : uint8_t {
  kKept,
  kTruncated,
  kTooLong,
  kLabelsCutOff,
  kWithoutLabels,
  kOtherLeftOut,  ///< the other sequence of its pair is left out
};

struct LengthRule {
  int64_t max_seq_len = 2048;
  config::TooLong too_long = config::TooLong::kDrop;  ///< not auto
  int64_t answer_tokens = 0;  ///< of prompts: what model.max_seq_len leaves for answers, too

  std::string words() const;  ///< "model.max_seq_len is 2048"
};
/// `data.too_long`, with auto resolved for the format: a text may be truncated anywhere, a
/// conversation may not.
LengthRule length_rule(const config::RunConfig& config, RecordFormat format);

/// A sequence that would be cut within an image is too long, also where others are truncated.
/// @param where "file:line"   @throws DataError for an over-long sequence under too_long: error
Fate fate_of(const Sequence& sequence, const LengthRule& rule, const std::string& where);

/// The first max_seq_len tokens with shifted labels: labels[i] = tokens[i + 1] if that token is
/// trained on. Images behind them are left out.
Example to_example(const Sequence& sequence, int64_t max_seq_len, int64_t record);

}  // namespace sftrun::data
