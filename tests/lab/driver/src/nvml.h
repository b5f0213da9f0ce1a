/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The part of NVML's binary interface that the simulated driver offers: types by their layout as the real pynvml
 * (nvidia-ml-py 13) declares them, and codes by number.
 */
#ifndef GB10_NVML_H
#define GB10_NVML_H

#include <stdint.h>

typedef int nvmlReturn_t;
typedef struct device *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

#define NVML_NO_INSTANCE UINT32_C(0xFFFFFFFF)   /* no MIG */

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

#define NVML_MEMORY_V2 UINT32_C(0x02000028)

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;            /* v2 and v3 */

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned int version, value;
} nvmlDeviceAddressingMode_t;

#define NVML_ADDRESSING_MODE_V1 UINT32_C(0x01000008)

typedef struct {
    unsigned int version, sensorType;
    int temperature;
} nvmlTemperature_t;

#define NVML_TEMPERATURE_V1 UINT32_C(0x0100000C)

typedef struct {
    unsigned int isC2cEnabled;
} nvmlC2cModeInfo_v1_t;

_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "as the version word says");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "as pynvml reads it");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "as pynvml reads it");

#endif
