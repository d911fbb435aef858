#include "retrieval_record.h"

#include <algorithm>
#include <utility>

#include "fit.h"
#include "nulls.h"
#include "record.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/record_error.h"
#include "source_records.h"

namespace sftrun::data {
namespace {

constexpr const char *kAnchor = "anchor", *kQuery = "query", *kPositive = "positive", *kPos = "pos",
                     *kNegative = "negative", *kNeg = "neg";

/// The first column that the record has; null: none.
const char* column_of(const Json& record, const char* name, const char* other) {
  for (const char* column : {name, other})
    if (value_of(record, column) != nullptr) return column;
  return nullptr;
}

std::string retrieval_text(const Json& value, const std::string& column, const std::string& where) {
  if (!value.is_string())
    throw RecordError(
        fmt::format("\"{}\" has a value that is no text: {}", column, excerpt(value.dump())), where,
        fmt::format("write \"{}\" as a text", column),
        fmt::format("write \"{}\" as a text", column));
  auto text = value.get<std::string>();
  if (text.empty())
    throw RecordError(fmt::format("\"{}\" is empty, and an empty text has no embedding", column),
                      where, "leave the record out", "leave the record out");
  return text;
}

/// Adds a text, or a list of them.
void append_texts(const Json& record, const std::string& column, const std::string& where,
                  std::vector<std::string>& texts) {
  const Json* value = value_of(record, column.c_str());
  if (value == nullptr) return;
  if (!value->is_array()) return texts.push_back(retrieval_text(*value, column, where));
  for (const Json& one : *value) texts.push_back(retrieval_text(one, column, where));
}

/// Special tokens that the tokenizer adds behind a text.
int64_t tokens_after(const std::vector<tokenizer::TokenId>& ids, const std::string& text,
                     const tokenizer::Tokenizer& tokenizer) {
  const std::vector<tokenizer::TokenId> own = tokenizer.encode(text, /*add_special_tokens=*/false);
  if (own.size() >= ids.size()) return 0;
  for (size_t before = 0; before + own.size() <= ids.size(); ++before)
    if (std::equal(own.begin(), own.end(), ids.begin() + static_cast<ptrdiff_t>(before)))
      return static_cast<int64_t>(ids.size() - own.size() - before);
  return 0;
}

}  // namespace

bool has_retrieval(const Json& record) {
  return column_of(record, kAnchor, kQuery) != nullptr &&
         column_of(record, kPositive, kPos) != nullptr;
}

RetrievalRecord retrieval_record(const Json& record, const std::string& where) {
  const char* anchor = column_of(record, kAnchor, kQuery);
  const char* positive = column_of(record, kPositive, kPos);
  if (anchor == nullptr || positive == nullptr)
    refuse_unpaired_query(
        record,
        *config::find_objective(config::first_objective_for(config::ExampleForm::kRetrieval)),
        where);
  RetrievalRecord read{.anchor = retrieval_text(*value_of(record, anchor), anchor, where)};
  append_texts(record, positive, where, read.positives);
  if (read.positives.empty())
    throw RecordError(fmt::format("\"{}\" is an empty list", positive), where,
                      "leave the record out", "leave the record out");
  if (const char* negative = column_of(record, kNegative, kNeg))
    append_texts(record, negative, where, read.negatives);
  for (int64_t number = 1;; ++number) {
    const std::string column = fmt::format("{}_{}", kNegative, number);
    if (value_of(record, column.c_str()) == nullptr) break;
    append_texts(record, column, where, read.negatives);
  }
  return read;
}

void refuse_unpaired_query(const Json& record, const config::ObjectiveInfo& reader,
                           const std::string& where) {
  refuse_token_ids(record, where);
  constexpr const char* kWrite = "write \"anchor\" (or \"query\") and \"positive\" (or \"pos\")";
  throw RecordError(
      fmt::format("the record has no query and text that fits it, which train.objective {} needs "
                  "(its keys: {})",
                  reader.name, keys_of(record)),
      where,
      fmt::format("{}; or name the columns: data.fields: {{anchor: COLUMN, positive: COLUMN}}",
                  kWrite),
      kWrite);
}

Sequence whole_text(std::string text, const TextModel& model, bool with_parts) {
  tokenizer::Encoding encoding =
      model.tokenizer->encode_with_spans(text, /*add_special_tokens=*/true);
  Sequence sequence{.ids = std::move(encoding.ids), .spans = std::move(encoding.spans)};
  sequence.mask.assign(sequence.ids.size(), 1);
  sequence.targets = {0};  // a text of one token has an embedding, too
  sequence.num_end_tokens = tokens_after(sequence.ids, text, *model.tokenizer);
  if (with_parts) sequence.parts = {{{0, static_cast<uint32_t>(text.size())}, "text"}};
  sequence.text = std::move(text);
  return sequence;
}

std::vector<Sequence> retrieval_sequences(const Json& record, const TextModel& model,
                                          const SequenceOptions& options,
                                          const std::string& where) {
  const RetrievalRecord read = retrieval_record(record, where);
  if (std::ssize(read.negatives) < options.negatives) {
    const std::string fix =
        fmt::format("set train.negatives to {}, or leave the record out", read.negatives.size());
    throw RecordError(fmt::format("the record has {} texts that do not fit, and train.negatives is "
                                  "{} (without the setting, as many as the first record has)",
                                  read.negatives.size(), options.negatives),
                      where, fix, fix);
  }
  std::vector<Sequence> sequences;
  for (const std::string& positive : read.positives) {
    sequences.push_back(whole_text(options.query_prompt + read.anchor, model, options.with_parts));
    sequences.push_back(whole_text(options.document_prompt + positive, model, options.with_parts));
    for (int64_t i = 0; i < options.negatives; ++i)
      sequences.push_back(
          whole_text(options.document_prompt + read.negatives[static_cast<size_t>(i)], model,
                     options.with_parts));
  }
  return sequences;
}

Example example_to_embed(const Json& record, const TextModel& model, const EmbeddedTexts& texts,
                         const std::string& where) {
  const char *query = column_of(record, kQuery, kAnchor),
             *document = column_of(record, "document", "text");
  if ((query == nullptr) == (document == nullptr)) {
    constexpr const char* kOne = "write one of both: \"query\", or \"text\"";
    throw RecordError(
        fmt::format("the record has {} (its keys: {})",
                    query == nullptr ? "no text to embed" : "a query and another text to embed",
                    keys_of(record)),
        where, kOne, kOne);
  }
  const char* column = query != nullptr ? query : document;
  const std::string text = retrieval_text(*value_of(record, column), column, where);
  const Sequence sequence =
      whole_text((query != nullptr ? texts.query_prompt : texts.document_prompt) + text, model,
                 /*with_parts=*/false);
  require_embedded(sequence.ids, model, where);
  return to_example(sequence, texts.max_seq_len, 0);
}

int64_t find_negatives(const config::RunConfig& config) {
  if (config.train.negatives) return *config.train.negatives;
  for (const config::DataSource& source : config.data.train) {
    SourceRecords records(config, source, SplitRole::kTrain);
    while (const auto block = records.next()) {
      for (size_t i = 0; i < block->count; ++i) {
        try {
          const std::string where = records.where(*block, i);
          return std::ssize(retrieval_record(records.parse(*block, i).record, where).negatives);
        } catch (const DataError&) {  // reported when the data are tokenised
        }
      }
    }
  }
  return 0;
}

}  // namespace sftrun::data
