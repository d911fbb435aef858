#include "sftrun/weights/gguf_source.h"

#include <gtest/gtest.h>

namespace sftrun::weights {
namespace {

using nlohmann::json;

constexpr const char* kName = "general.name";
constexpr const char* kBase = "general.base_model.0.repo_url";

std::string source_of(const json& metadata) {
  return source_repository(metadata).value_or("");
}

TEST(GgufSource, WhatTheFileCallsItsSource) {
  for (const char* said :
       {"https://huggingface.co/meta-llama/Llama-3.2-1B-Instruct",
        "https://huggingface.co/meta-llama/Llama-3.2-1B-Instruct/tree/main",
        "http://hf.co/meta-llama/Llama-3.2-1B-Instruct/", "meta-llama/Llama-3.2-1B-Instruct"}) {
    for (const char* key :
         {"general.source.url", "general.source.repo_url", "general.source.huggingface.repository"})
      EXPECT_EQ(source_of({{key, said}}), "meta-llama/Llama-3.2-1B-Instruct") << key << " " << said;
  }
}

TEST(GgufSource, NothingThatTransformersCannotLoad) {
  for (const char* said :
       {"https://github.com/owner/name", "https://huggingface.co/owner", "https://huggingface.co",
        "https://huggingface.co/datasets/owner/name", "https://huggingface.co/owner/name-GGUF",
        "owner/name.gguf", "../name", "a/b/c", "owner/na me", "", "name"}) {
    EXPECT_EQ(source_of({{"general.source.url", said}}), "") << said;
  }
  EXPECT_EQ(source_of({{"general.source.url", 7}}), "");
  EXPECT_EQ(source_of(json::object()), "");
}

TEST(GgufSource, AnAncestorIsAnotherModel) {
  const char* const instruct = "https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct";
  const char* const base = "https://huggingface.co/Qwen/Qwen2.5-0.5B";
  // Converted from a repository that is itself a copy of the base: one name.
  EXPECT_EQ(source_of({{kName, "Qwen2.5 0.5B Instruct"}, {kBase, instruct}}),
            "Qwen/Qwen2.5-0.5B-Instruct");
  EXPECT_EQ(source_of({{kName, "Qwen2.5 0.5B Instruct"},
                       {"general.base_model.0.name", "Qwen2.5-0.5B-Instruct"},
                       {kBase, "https://huggingface.co/mirror/q"}}),
            "mirror/q");
  // Fine-tuned from it.
  EXPECT_EQ(source_of({{kName, "Qwen2.5 0.5B Instruct"},
                       {"general.base_model.0.name", "Qwen2.5 0.5B"},
                       {kBase, base}}),
            "");
  EXPECT_EQ(source_of({{kBase, base}}), "");
  EXPECT_EQ(source_of({{kName, "Qwen2.5 0.5B"}, {"general.base_model.count", 2}, {kBase, base}}),
            "");
}

}  // namespace
}  // namespace sftrun::weights
