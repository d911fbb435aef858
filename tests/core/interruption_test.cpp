#include "sftrun/core/interruption.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>

#include "sftrun/core/file_hash.h"
#include "support/temporary_directory.h"

namespace sftrun {
namespace {

bool is_requested = false;

bool requested() {
  return is_requested;
}

TEST(Interruption, OnlyWhereSomebodyExpectsIt) {
  is_requested = true;
  interruption_point();
  {
    const Interruptible scope(requested);
    EXPECT_THROW(interruption_point(), Interrupted);
    { const Interruptible inner(requested); }
    EXPECT_THROW(interruption_point(), Interrupted);
    is_requested = false;
    interruption_point();
  }
  is_requested = true;
  interruption_point();
}

TEST(Interruption, EndsTheHashingOfAFile) {
  const test::TemporaryDirectory dir;
  std::ofstream(dir / "file") << std::string(5 << 20, 'x');
  const FileHashes hashes({});
  is_requested = true;
  const Interruptible scope(requested);
  EXPECT_THROW(hashes.of(dir / "file"), Interrupted);
  is_requested = false;
  EXPECT_EQ(hashes.of(dir / "file").size(), 32U);
}

}  // namespace
}  // namespace sftrun
