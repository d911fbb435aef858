#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "double_array.h"
#include "model.h"

namespace sftrun::tokenizer {

struct UnigramSource {
  std::vector<std::pair<std::string, double>> pieces;  ///< texts and log-probabilities, by id
  std::optional<TokenId> unk_id;
  bool byte_fallback = false;
};

/// The most probable segmentation of a word under a unigram language model (arXiv:1804.10959), by
/// Viterbi's algorithm, as in the library: of equal segmentations the one found first.
class Unigram final : public Model {
 public:
  /// @throws DataError
  Unigram(const UnigramSource& source, const std::string& where);

  void encode(std::string_view word, Scratch& scratch, std::vector<Symbol>& out) const override;
  const StringTable& vocab() const override { return texts_; }
  size_t num_tokens() const override { return scores_.size(); }
  std::string_view unk_token() const override {
    return unk_id_ < 0 ? std::string_view() : texts_.at(unk_id_);
  }
  void write_json(std::string& out) const override;

 private:
  void find_path(std::string_view word, std::vector<Scratch::PathNode>& path) const;
  void take_path(const std::vector<Scratch::PathNode>& path, std::vector<Symbol>& out) const;
  void name_unknown(std::string_view word, std::vector<Symbol>& out) const;

  StringTable texts_;
  std::vector<double> scores_;  ///< by id
  DoubleArray trie_;
  double unk_score_ = 0;
  TokenId unk_id_ = -1;
  bool byte_fallback_ = false;
  std::vector<TokenId> byte_ids_;  ///< -1: no token for the byte
};

}  // namespace sftrun::tokenizer
