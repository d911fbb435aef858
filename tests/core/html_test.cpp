#include "sftrun/core/html.h"

#include <gtest/gtest.h>

namespace sftrun {
namespace {

TEST(EscapeHtml, ReplacesWhatHasAMeaningInContentAndAttributes) {
  EXPECT_EQ(escape_html("<a href=\"x\">R&D</a> 'é'"),
            "&lt;a href=&quot;x&quot;&gt;R&amp;D&lt;/a&gt; 'é'");
}

TEST(EscapeHtml, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(escape_html("a\xff<"), "a\uFFFD&lt;");
}

}  // namespace
}  // namespace sftrun
