#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "normal_forms.h"

namespace sftrun::tokenizer {

/// One step of a normalizer. Immutable.
class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  /// A quick check: true only if the text stays unchanged; may be false even then.
  virtual bool surely_keeps(std::string_view text) const = 0;
  /// @param text valid UTF-8, not empty   @param with_sources else `sources` stays empty
  virtual NormalizedText run(std::string_view text, bool with_sources) const = 0;
};

/// The step that a section of a type other than Sequence describes (normalizer_steps.cpp).
/// @throws DataError for a type that the library does not know
std::unique_ptr<NormalizerStep> make_normalizer_step(const Json& section, const std::string& where);

/// The `normalizer` section of a tokenizer.json. Immutable.
class Normalizer {
 public:
  Normalizer() = default;
  /// @throws DataError
  Normalizer(const Json& section, const std::string& where);

  bool surely_keeps(std::string_view text) const;
  /// @param text valid UTF-8, not empty   @param with_sources else `sources` stays empty
  NormalizedText run(std::string_view text, bool with_sources) const;
  std::string operator()(const std::string& text) const {
    return text.empty() ? text : run(text, false).text;
  }

 private:
  void read(const Json& section, const std::string& where);
  std::vector<std::unique_ptr<NormalizerStep>> steps_;
};

}  // namespace sftrun::tokenizer
