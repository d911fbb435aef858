#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "sftrun/core/error.h"

namespace sftrun::test {

/// Runs `function`, which must throw an E whose full text holds every one of `parts`.
template <typename E = DataError, typename Function>
void expect_error(Function&& function, std::initializer_list<std::string> parts) {
  try {
    function();
  } catch (const E& error) {
    const std::string text = error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in:\n" << text;
    }
    return;
  }
  ADD_FAILURE() << "no error was thrown";
}

/// The full text of the E that `function` throws.
template <typename E = DataError, typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

}  // namespace sftrun::test
