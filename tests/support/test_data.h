#pragma once

#include <filesystem>

namespace sftrun::test {

/// The fixtures, tests/data.
inline const std::filesystem::path kData = SFTRUN_TEST_DATA;
inline const std::filesystem::path kModels = kData / "models";

}  // namespace sftrun::test
