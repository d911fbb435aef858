#pragma once

#include <string>
#include <vector>

#include "record_media.h"
#include "sftrun/data/example.h"
#include "sftrun/data/sequence.h"
#include "sftrun/templates/chat_labels.h"

/// Puts the text of images and features in place of what stands for them, before the text becomes tokens.
namespace sftrun::data {

/// The text of an image, or of features, in a longer text.
struct PlacedMedia {
  const ReadMedia* media = nullptr;  ///< of the record's
  tokenizer::ByteSpan span;
};

/// The model that renders a conversation: the given one, or one with the chat template for videos, where the messages have a video and the
/// model's own template writes none. That template reads strings as parts.
/// @param messages as they are rendered   @param room receives another model
const TextModel& model_for_videos(const TextModel& model, Json& messages, TextModel& room);

/// In place of what the template writes for images, and of marks. Runs and origins move along; the text of an image has the origin
/// "image", that of features "features".
/// @param messages as they were rendered, after RecordMedia::take
/// @throws DataError if the template writes other images or features than the messages have, or a message's text has what stands for images
std::vector<PlacedMedia> place_media(templates::LabelledConversation& conversation,
                                     const Json& messages, const RecordMedia& media);

/// In place of the markers of a text, in its prompt and then its completion. What the template would write around images is written around
/// `<image>`, too. A text without markers begins with those of the columns.   @throws DataError as RecordMedia::take_for_text, and for markers of the model in a record without images
std::vector<PlacedMedia> place_media(PlainText& text, RecordMedia& media);

/// Removes the labels of the tokens of images and features, and notes which tokens each has.
/// @param sequence with ids, mask and spans
void note_media(Sequence& sequence, const std::vector<PlacedMedia>& placed,
                const RecordMedia& media);

/// That no token of an image has a label: what `note_media` does, by the tokens alone.
/// It fails as an invariant does: such a run would train the model to write images' tokens.
void require_no_image_labels(const Example& example, const TextModel& model,
                             const std::string& where);

}  // namespace sftrun::data
