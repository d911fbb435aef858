#pragma once

#include "sftrun/weights/hf_text_files.h"
