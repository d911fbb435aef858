#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/app/requests/parts.h"
#include "sftrun/data/example.h"
#include "sftrun/data/image_input.h"
#include "sftrun/tokenizer/tokenizer.h"

/// The records that `sftrun bench` trains on.
namespace sftrun::engine {

/// Images of one size for each record: encoded files, and what the model's processor and tokenizer make of one.
class SyntheticImages {
 public:
  /// @param input that reads images   @param tokenizer of the same model
  /// @throws DataError for a size that the image processor refuses
  SyntheticImages(const app::PlannedImages& planned, std::shared_ptr<const data::ImageInput> input,
                  const tokenizer::Tokenizer& tokenizer);

  const app::PlannedImages& planned() const { return planned_; }
  const std::shared_ptr<const data::ImageInput>& input() const { return input_; }
  /// Tokens of a record's images, with the processor's markers around and between them.
  int64_t tokens_of_record() const {
    return planned_.of_sequence * static_cast<int64_t>(tokens_.size());
  }
  /// Positions of a record that get features.
  int64_t features_of_record() const { return planned_.of_sequence * image_.num_tokens; }
  void make_files();  ///< takes long for large images
  /// Appends a record's images, whose files are made.   @param record its number, which chooses the files
  void add_to(data::Example& example, int64_t record) const;

 private:
  app::PlannedImages planned_;
  std::shared_ptr<const data::ImageInput> input_;
  std::vector<tokenizer::TokenId> tokens_;
  data::SequenceMedia image_;  // without its file and its place
  std::vector<std::shared_ptr<const std::string>> files_;
};

/// Records of one length: images, if there are some, then random tokens. All tokens but those of images have labels.
class SyntheticRecords {
 public:
  /// @param images null: texts alone
  /// @throws ConfigError if the images leave no token for a text
  SyntheticRecords(int64_t seq_len, int64_t vocab_size,
                   std::optional<SyntheticImages> images = std::nullopt);

  int64_t seq_len() const { return seq_len_; }
  const std::optional<SyntheticImages>& images() const { return images_; }
  /// Others for each step.
  std::vector<data::Example> of_step(int64_t count, int64_t step) const;

 private:
  int64_t seq_len_, vocab_size_;
  std::optional<SyntheticImages> images_;
};

}  // namespace sftrun::engine
