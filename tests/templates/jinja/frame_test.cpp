#include "jinja/frame.h"

#include <gtest/gtest.h>

namespace sftrun::templates::jinja {
namespace {

constexpr Symbol kX = 0, kY = 1;

TEST(Scopes, InnerScopesSeeOuterVariablesAndAssignTheirOwn) {
  Runtime runtime(Limits{}, 0);
  const Scopes scopes(runtime, {});
  scopes.root()->set(kX, Value::integer(1));
  scopes.root()->set(kY, Value::integer(2));
  const FramePtr inner = scopes.inner(scopes.root(), {kY});
  EXPECT_EQ(inner->find(kX), scopes.root()->find(kX));
  ASSERT_NE(inner->find(kY), nullptr);
  EXPECT_FALSE(inner->find(kY)->value.has_value()) << "undefined until the scope assigns it";
  inner->set(kX, Value::integer(3));
  EXPECT_EQ(static_cast<int>(inner->find(kX)->value->integral()), 3);
  EXPECT_EQ(static_cast<int>(scopes.root()->find(kX)->value->integral()), 1);
  EXPECT_EQ(inner->num_slots(), 4U);
}

TEST(Scopes, EndOfTheRenderEmptiesFramesThatValuesReferTo) {
  Runtime runtime(Limits{}, 0);
  FramePtr kept;
  {
    Scopes scopes(runtime, {});
    kept = scopes.inner(scopes.root(), {kX});
    scopes.keep(kept);
  }
  EXPECT_TRUE(kept->slots.empty());
}

}  // namespace
}  // namespace sftrun::templates::jinja
