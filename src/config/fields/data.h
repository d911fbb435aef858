#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "fields/limits.h"
#include "sftrun/config/run_config.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {

template <class Visitor>
void visit_fields(DataConfig& data, Visitor&& field) {
  using enum OnResume;
  field(
      data.train, "train", any().otherwise("required"), kCompared,
      "Training data: a file (JSON lines, JSON, CSV, TSV, Parquet, Arrow; also .gz and .zst), a "
      "glob, a folder, a data set on the hub, or a list of these, each as {path, name, split, "
      "weight, format, fields, image_root, max_samples}; `name` selects a subset. docs/data.md has "
      "the rules.",
      "[{path: chat.jsonl, weight: 2}, 'code/*.parquet']");
  field(data.val, "val", any().otherwise("none"), kAny,
        "Validation data, in the same form as `train`.", "data/val.jsonl");
  field(data.val_split, "val_split", between(0, kMaxCount), kSame,
        "Instead of `val`: share (below 1) or number (1 or more) of training records to hold out.",
        "0.05");
  field(data.format, "format", any(), kSame,
        "Record format. auto: detected from the records' keys.", "messages");
  field(data.fields, "fields", any(), kSame,
        fmt::format("Names of the columns, if they differ from those of the format: {}; inside "
                    "turns {}. Dots select inside a column. `roles` maps the names of roles.",
                    join(record_columns(), ", "),
                    join(std::vector<std::string>(kTurnFields.begin(), kTurnFields.end()), ", ")),
        "{prompt: question, completion: answers.0.text}");
  field(data.shuffle, "shuffle", any(), kSame,
        "Shuffle the examples in every epoch. The order depends only on the seed.", "true");
  field(data.packing, "packing", any(), kSame,
        "Pack several examples into one sequence of max_seq_len tokens (a packed sequence). "
        "Attention does not cross examples.",
        "true");
  field(data.bin_tokens, "bin_tokens", between(1, 1 << 24), kSame,
        "Tokens per packed sequence; a longer example gets one of its own. auto: max_seq_len, less "
        "for small data sets.",
        "1024");
  field(data.group_by_length, "group_by_length", any(), kSame,
        "Without packing: batches with examples of similar length, in random order.", "true");
  field(data.seed, "seed", between(0, kMaxSeed), kSame,
        "Seed of the order of examples and of val_split.", "42");
  field(data.streaming, "streaming", any(), kSame,
        "Tokenize during training instead of before it. Requires train.max_steps.", "true");
  field(data.shuffle_buffer, "shuffle_buffer", between(1, 1 << 24), kSame,
        "Streaming: number of records that are shuffled and packed together.", "65536");
  field(data.cache_dir, "cache_dir", a_path("none").otherwise("~/.cache/sftrun/data"), kAny,
        "Directory of cached tokenized data sets, for later runs and all ranks. none: no cache.",
        "none");
  field(data.loss_on, "loss_on", any(), kSame,
        "Tokens that are trained on (`responses` is an alias of assistant).", "assistant");
  field(data.label_weights, "label_weights", any(), kSame,
        "Weights in the loss of what regular expressions (Python's re) match in an answer; of "
        "several "
        "matches the last one in this list counts. They multiply the messages' own `weight`; the "
        "loss "
        "is divided by the sum of the weights. 0: no label.",
        R"({'(?s)<think>.*?</think>': 0.3})");
  field(data.thinking, "thinking", any(), kSame,
        "Reasoning in earlier assistant turns. template: as the chat template renders it. keep: "
        "kept. split: one example per turn.",
        "template");
  field(data.empty_thinking, "empty_thinking", any(), kSame,
        "Answers for which the template writes empty reasoning (`<think></think>`). warn: train on "
        "it, with a warning. drop: do not train on that part. keep: train on it.",
        "drop");
  field(data.chat_template_kwargs, "chat_template_kwargs", any(), kSame,
        "Variables for the chat template.", "{enable_thinking: false}");
  field(data.too_long, "too_long", any(), kSame,
        "Examples longer than max_seq_len. auto: drop for chat, truncate for text.", "truncate");
  field(data.bad_records, "bad_records", any(), kAny,
        "Records that cannot be used (malformed JSON, a missing key). error: stop, and list the "
        "first ten with their lines. skip: leave them out, and count them.",
        "skip");
  field(data.classes, "classes", any(), kSame,
        readers_of_setting("data.classes") +
            ": names of the classes, in the order of their scores. Without it: those of a model "
            "that is a classifier, else "
            "what the records have as \"label\" or \"labels\", in alphabetical or numerical order.",
        "[negative, positive]");
  field(data.query_prompt, "query_prompt", any(), kSame,
        readers_of_setting("data.query_prompt") +
            ": text before each query, which is saved as the prompt `query` of "
            "sentence-transformers.",
        "\"query: \"");
  field(data.document_prompt, "document_prompt", any(), kSame,
        readers_of_setting("data.document_prompt") +
            ": text before all other texts, which is saved as the prompt `document`.",
        "\"passage: \"");
  field(data.image_root, "image_root", a_path().otherwise("the folder of the record's file"), kAny,
        "Folder of the images, frames of videos and files of features that records name with "
        "relative paths.",
        "data/images");
  field(data.max_image_pixels, "max_image_pixels", between(0, kMaxImagePixels), kSame,
        "Most pixels of an image after resizing, or of its tiles: fewer tokens for large images "
        "(Qwen, Gemma 4, InternVL). 0: the limit of the model's image processor.",
        "1003520");
  field(data.image_longest_edge, "image_longest_edge", between(0, kMaxImageSide), kSame,
        "Most pixels of an image's longer side after resizing (Qwen, SmolVLM, Pixtral). 0: the "
        "limit of the model's image processor.",
        "1024");
}

}  // namespace sftrun::config
