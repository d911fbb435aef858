#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Properties of code points as in the `tokenizers` library (tables written by
/// scripts/fixtures/make_unicode.py).
namespace sftrun::tokenizer {

/// General category; the order is that of the table's writer.
// clang-format off
enum class Category : uint8_t {
  kCn, kLu, kLl, kLt, kLm, kLo, kMn, kMc, kMe, kNd, kNl, kNo, kPc, kPd, kPs,
  kPe, kPi, kPf, kPo, kSm, kSc, kSk, kSo, kZs, kZl, kZp, kCc, kCf, kCo, kCs,
};
// clang-format on

struct CodePointRange {
  uint32_t first, last;  ///< both inside
};

/// Properties of every code point in two stages: which block, then which property of the block.
class PropertyTable {
 public:
  static const PropertyTable& get();  ///< built at the first call

  Category category(char32_t c) const { return static_cast<Category>(at(c) & 31); }
  /// Letter: \p{L}.
  bool is_letter(char32_t c) const { return in(c, Category::kLu, Category::kLo); }
  /// Number: \p{N}.
  bool is_number(char32_t c) const { return in(c, Category::kNd, Category::kNo); }
  // clang-format off
  bool is_onig_word(char32_t c) const { return has(c, kOnigWord); }  ///< \w of oniguruma
  bool is_rust_word(char32_t c) const { return has(c, kRustWord); }  ///< \w of Rust's regex crate
  bool is_punctuation(char32_t c) const { return has(c, kPunctuation); }    ///< Punctuation and BERT
  bool is_bert_accent(char32_t c) const { return has(c, kBertAccent); }     ///< stripped by BERT
  bool is_bert_control(char32_t c) const { return has(c, kBertControl); }   ///< removed by BERT
  bool is_accent(char32_t c) const { return has(c, kAccent); }              ///< StripAccents
  bool joins_grapheme(char32_t c) const { return has(c, kJoinsGrapheme); }  ///< of the one before it
  bool has_lower(char32_t c) const { return has(c, kHasLower); }
  // clang-format on
  bool has(char32_t c, uint16_t properties) const { return (at(c) & properties) != 0; }

  /// Bits above the category. The first: NFC may change a text with this code point (it combines,
  /// decomposes, or composes with the previous one).
  static constexpr uint16_t kNfcActive = 1 << 5, kOnigWord = 1 << 6, kRustWord = 1 << 7,
                            kCompatible = 1 << 8, kCanonical = 1 << 9, kHasLower = 1 << 10,
                            kPunctuation = 1 << 11, kBertAccent = 1 << 12, kBertControl = 1 << 13,
                            kAccent = 1 << 14, kJoinsGrapheme = 1 << 15;

 private:
  PropertyTable();
  bool in(char32_t c, Category first, Category last) const {
    return static_cast<uint8_t>((at(c) & 31) - static_cast<uint8_t>(first)) <=
           static_cast<uint8_t>(last) - static_cast<uint8_t>(first);
  }
  uint16_t at(char32_t c) const {
    return c < 0x110000 ? blocks_[static_cast<size_t>(block_of_[c >> kBlockBits]) << kBlockBits |
                                  (c & kBlockMask)]
                        : 0;
  }
  static constexpr int kBlockBits = 7;
  static constexpr uint32_t kBlockMask = (1u << kBlockBits) - 1;
  std::array<uint16_t, (0x110000 >> kBlockBits)> block_of_;
  std::vector<uint16_t> blocks_;
};

/// \s of both engines: White_Space, stable since Unicode 6.3.
bool is_white_space(char32_t c);
/// Rust's char::is_numeric.
bool is_rust_numeric(char32_t c);
/// Appends the lower case of a code point, which may be two.
void append_lower(std::string& out, char32_t c);
/// The script as in UnicodeScripts (kana and Han count as one); 0 matches any script.
int script_of(char32_t c);
/// Whether the next character belongs to the grapheme cluster of this one.
bool prefixes_grapheme(char32_t c);
/// The ranges of \p{Han}.
const CodePointRange* han_ranges(size_t& num_ranges);

}  // namespace sftrun::tokenizer
