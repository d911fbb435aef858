#pragma once

#include <string>

#include "sftrun/data/dataset.h"

/// Shows the model's input: every token, whether it has a label, and the origin of its text.
namespace sftrun::data {

/// A legend, then runs of tokens with the same origin, one per line. With `colour` uses ANSI
/// colours; without, tokens are separated by │, runs with labels begin with ">>", and special
/// tokens are enclosed in ⟨⟩.
std::string preview_text(const Preview& preview, const TextModel& model, bool colour);

/// A self-contained HTML page, light or dark by the reader's preference; tooltips show each token's
/// id, label and origin.
std::string preview_html(const std::vector<Preview>& previews, const TextModel& model,
                         const std::string& title);

/// {"data_sets": [{"path", "format", "format_reason", "sequences": […]}]}, and of a sequence:
/// "place" in the file; "input_ids", "tokens" (their texts), "labels" (-100: none) and "origins",
/// one each a token; "trained_of_text", what is trained on where no token has a label: "one score of each text", else null; "images", of each its "file" (null: bytes of the record), "width", "height",
/// "num_tokens" and its tokens ["begin", "end") with the markers around them; "num_labels"; "label_weights", one each a token (0: no label), null if all are 1; "is_desirable", the judgement of an answer, null without one; "classes" of a text, "margin" of a pair, "reward" or "advantage" and "group" (numbered in the order of the preview) of a sampled answer, each null without one; "num_kept", the leading tokens that training sees; "left_out",
/// why it is not trained on, null when it is.
Json preview_json(const std::vector<Preview>& previews, const TextModel& model);

}  // namespace sftrun::data
