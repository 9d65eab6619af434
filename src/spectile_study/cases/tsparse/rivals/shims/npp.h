// Stands for the header of that name, of which spECK takes the ranges of integers.
#pragma once

#include <cstdint>

#define NPP_MIN_8U 0
#define NPP_MAX_8U UINT8_MAX
#define NPP_MIN_16U 0
#define NPP_MAX_16U UINT16_MAX
#define NPP_MIN_32U 0
#define NPP_MAX_32U UINT32_MAX
#define NPP_MIN_8S INT8_MIN
#define NPP_MAX_8S INT8_MAX
#define NPP_MIN_16S INT16_MIN
#define NPP_MAX_16S INT16_MAX
#define NPP_MIN_32S INT32_MIN
#define NPP_MAX_32S INT32_MAX
