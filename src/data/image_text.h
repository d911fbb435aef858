#pragma once

#include <string>
#include <vector>

#include "record_images.h"
#include "sftrun/data/example.h"
#include "sftrun/data/sequence.h"
#include "sftrun/templates/chat_labels.h"

/// Puts the text of images in place of what stands for them, before the text becomes tokens.
namespace sftrun::data {

/// The text of an image in a longer text.
struct PlacedImage {
  size_t image = 0;  ///< index into the record's images
  tokenizer::ByteSpan span;
};

/// In place of what the template writes for images. Runs and origins move along; an image's text has the origin "image".
/// @param messages as they were rendered, after RecordImages::take
/// @throws DataError if the template writes other images than the messages have, or a message's text has what stands for images
std::vector<PlacedImage> place_images(templates::LabelledConversation& conversation,
                                      const Json& messages, const RecordImages& images);

/// In place of the markers of a text, in its prompt and then its completion. What the template would write around images is written around
/// `<image>`, too.   @throws DataError as RecordImages::take_for_text, and for markers of the model in a record without images
std::vector<PlacedImage> place_images(PlainText& text, RecordImages& images);

/// Removes the labels of images' tokens, and notes which tokens each image has.
/// @param sequence with ids, mask and spans
void note_images(Sequence& sequence, const std::vector<PlacedImage>& placed,
                 const RecordImages& images);

/// That no token of an image has a label: what `note_images` does, by the tokens alone.
/// It fails as an invariant does: such a run would train the model to write images' tokens.
void require_no_image_labels(const Example& example, const TextModel& model,
                             const std::string& where);

}  // namespace sftrun::data
