#pragma once

#include <cstdint>
#include <string>

/// Features that another encoder computed, as a model's inputs.
namespace sftrun {

/// Maps rows of features to rows of the text model, as LLaVA 1.5's projector does (arXiv:2310.03744, mlp2x_gelu): linear with bias,
/// exact GELU, linear with bias.
struct FeatureProjector {
  std::string name;
  int64_t input_width = 0;  ///< of a row of features
  int64_t hidden = 0;       ///< between the two linears; 0: the text model's width
  /// Rows in the text for the features of one file: means of as many of its rows (torch's adaptive_avg_pool1d). 0: a row for each.
  int64_t tokens = 0;

  std::string module() const { return "projectors." + name; }
  std::string first() const { return module() + ".linear_1"; }   ///< module [hidden, input_width]
  std::string second() const { return module() + ".linear_2"; }  ///< module [text hidden, hidden]
  bool operator==(const FeatureProjector&) const = default;
};

}  // namespace sftrun
