/* The parts of an image that are read: the global variables of PTX text. Everything else is taken as it is. */
#pragma once

#include <stdint.h>

/* The bytes of all variables written `.global ... .b8 NAME[BYTES]`. 0 for an image that is not PTX text. */
uint64_t image_global_bytes(const void *image);
