#include "source_document.h"

#include <gtest/gtest.h>

#include "sftrun/config/yaml_reader.h"

namespace sftrun::foreign {
namespace {

SourceDocument document_of(Tool tool, std::string_view yaml) {
  Problems problems;
  Value root = config::parse_yaml(std::string(yaml), "file.yaml", problems);
  EXPECT_TRUE(problems.empty());
  return SourceDocument(table_of(tool), "file.yaml", std::move(root));
}

TEST(SourceDocument, FindsKeysWithTheirPlaces) {
  const SourceDocument document = document_of(Tool::kAccelerate, "a:\n  b: 3\n  c:\n");
  const auto key = document.find("a.b");
  ASSERT_TRUE(key);
  EXPECT_EQ(key->value.text, "3");
  EXPECT_EQ(key->place, "file.yaml:2:3");
  EXPECT_EQ(key->value_place, "file.yaml:2:6");
  EXPECT_EQ(key->source, "file.yaml:2");
  EXPECT_FALSE(document.find("a.c"));
  EXPECT_TRUE(document.find_named("a.c"));
  EXPECT_FALSE(document.find_named("a.d"));
  EXPECT_EQ(document.text_of("a.d"), "");
}

TEST(SourceDocument, ReplacesKeysOnlyWhereTheToolDoes) {
  constexpr std::string_view kYaml = "dir: out\npath: ${dir}/x\n";
  EXPECT_EQ(document_of(Tool::kTorchtune, kYaml).text_of("path"), "out/x");
  EXPECT_EQ(document_of(Tool::kAccelerate, kYaml).text_of("path"), "${dir}/x");
}

}  // namespace
}  // namespace sftrun::foreign
