#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "commands.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/units.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/json_lines.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/data/sequence.h"

namespace sftrun::engine {
namespace {

struct ScoredRecord {
  std::string_view line;
  data::Json record;
  std::string where;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;  // 1: this token's log-probability counts
  double logprob = 0;
  int64_t num_labelled = 0;
};

/// All but the first for text, the completion for prompt/completion, the assistant turns for
/// messages. Texts are scored as they are: no end token is appended.
void tokenize(ScoredRecord& scored, const data::TextModel& text) {
  data::SequenceOptions options;
  options.append_eos = false;
  const data::RecordFormat format = data::detect_format(scored.record, scored.where).format;
  const data::Sequence sequence =
      data::SequenceBuilder(format, text, options).build(scored.record, scored.where).at(0);
  scored.tokens = sequence.ids;
  scored.mask = sequence.mask;
}

std::vector<ScoredRecord> read_records(const std::string& content, const std::string& name,
                                       const data::TextModel& text) {
  const std::vector<data::JsonLine> lines = data::split_json_lines(content, name);
  std::vector<ScoredRecord> records(lines.size());
  data::parallel_for(static_cast<int64_t>(lines.size()), at::get_num_threads(), [&](int64_t i) {
    const auto index = static_cast<size_t>(i);
    ScoredRecord& scored = records[index];
    scored.line = lines[index].text;
    scored.where = fmt::format("{}:{}", name, lines[index].number);
    scored.record = data::parse_json_line(scored.line, scored.where);
    tokenize(scored, text);
  });
  return records;
}

data::Example to_example(const ScoredRecord& scored) {
  data::Example example;
  example.tokens = scored.tokens;
  example.labels.assign(scored.tokens.size(), data::kIgnoreIndex);
  for (size_t i = 0; i + 1 < scored.tokens.size(); ++i) {
    if (scored.mask[i + 1]) example.labels[i] = scored.tokens[i + 1];
  }
  return example;
}

/// Packs neighbours up to about kTokens tokens and scores them in one pass.
void score(std::vector<ScoredRecord>& records, model::Decoder& decoder) {
  constexpr size_t kTokens = 4096;
  for (size_t first = 0; first < records.size();) {
    std::vector<data::Example> examples;
    size_t end = first, tokens = 0;
    while (end < records.size() &&
           (end == first || tokens + records[end].tokens.size() <= kTokens)) {
      tokens += records[end].tokens.size();
      if (!records[end].tokens.empty()) examples.push_back(to_example(records[end]));
      ++end;
    }
    std::vector<data::Bin> bins;
    for (size_t i = 0; i < examples.size(); ++i) bins.push_back({static_cast<int64_t>(i)});
    const data::Batch batch = data::make_batch(data::ExampleStore::in_memory(examples), bins, 0,
                                               static_cast<int64_t>(bins.size()));
    if (batch.num_tokens() > 0) {
      const model::PackedBatch packed =
          model::prepare_batch(batch, decoder.rope(), decoder.batch_target(), {});
      const at::Tensor losses = decoder.token_losses(packed).cpu();
      const float* loss = losses.data_ptr<float>();
      size_t example = 0;
      for (size_t i = first; i < end; ++i) {
        if (records[i].tokens.empty()) continue;
        for (const int32_t label : examples[example].labels) {
          if (label == data::kIgnoreIndex) continue;
          records[i].logprob -= static_cast<double>(*loss++);
          ++records[i].num_labelled;
        }
        ++example;
      }
    }
    first = end;
  }
}

}  // namespace

int run_score(const nlohmann::json& request) {
  LoadedModel model = load_model(request);
  const auto input = request.at("input").get<std::string>(),
             output = request.at("output").get<std::string>();
  const std::string content = input == "-" ? read_standard_input() : read_text_file(input);
  std::vector<ScoredRecord> records =
      read_records(content, input == "-" ? "<stdin>" : input, model.text);
  score(records, *model.decoder);
  for (const ScoredRecord& scored : records) {
    if (std::isfinite(scored.logprob)) continue;
    weights::require_finite(*model.checkpoint, request.at("model").get<std::string>());
    throw DataError("the record's log-probability is no finite number", scored.where,
                    "give --dtype fp32; if it stays so, the adapter is broken");
  }
  std::string text;
  double total = 0;
  int64_t tokens = 0, num_empty = 0;
  for (const ScoredRecord& scored : records) {
    const bool empty = scored.num_labelled == 0;  // of nothing there is no probability
    num_empty += empty ? 1 : 0;
    const data::Json additions = {{"logprob", empty ? data::Json() : data::Json(scored.logprob)},
                                  {"tokens", scored.num_labelled}};
    text += data::extend_json_line(scored.line, scored.record, additions) + "\n";
    total += scored.logprob;
    tokens += scored.num_labelled;
  }
  if (output == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  } else {
    write_file_atomically(output, text);
  }
  if (num_empty > 0) {
    log::warn(
        "{} of {} records have no token to score (no assistant's turn? one token alone?): "
        "their logprob is null",
        num_empty, records.size());
  }
  log::info(
      "scored {} records, {} tokens{}", records.size(), tokens,
      tokens > 0 ? fmt::format(", mean loss {:.4f}", -total / static_cast<double>(tokens)) : "");
  return 0;
}

}  // namespace sftrun::engine
