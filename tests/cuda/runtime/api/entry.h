#pragma once

#include "../device/devices.h"
#include "../device/memory.h"
#include "../device/report.h"
#include "../device/settings.h"
#include "../device/streams.h"

/// What every entry point of a library that is stood in for begins with.
#define STAND_IN_API extern "C" __attribute__((visibility("default")))

/// An entry point that libraries link and the program does not call.
#define STAND_IN_MISSING(name)                      \
  STAND_IN_API void name() {                        \
    ::stand_in::fail(#name " is not stood in for"); \
  }
