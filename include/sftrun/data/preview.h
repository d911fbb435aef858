#pragma once

#include <string>

#include "sftrun/data/dataset.h"

/// What the model will see, for people: every token, whether it carries a label, and where its text
/// came from.
namespace sftrun::data {

/// Runs of tokens of one origin, one below the other. With `colour` by ANSI colours; without,
/// tokens are separated by │, runs that are learnt begin with ">>", and special tokens stand in ⟨⟩.
/// A legend comes first.
std::string preview_text(const Preview& preview, const TextModel& model, bool colour);

/// A page that needs nothing else: light and dark by the reader's preference; each token's id,
/// label and origin in its tooltip.
std::string preview_html(const std::vector<Preview>& previews, const TextModel& model,
                         const std::string& title);

}  // namespace sftrun::data
