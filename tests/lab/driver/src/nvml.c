/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * libnvidia-ml.so.1 of a simulated GB10. Every call asks the driver (gb10-simd) anew, as the real library asks the kernel;
 * names of processes are read from the caller's own /proc, as the real library reads them.
 */
#include "nvml.h"
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define DEVICES 2

struct device {
    unsigned int index;
};

static struct device devices[DEVICES] = {{0}, {1}};
static int initialized;

struct view {
    char *text;                 /* the driver's answer */
    const char *device;         /* the line of the device that was asked for */
};

/* ---------------------------------------------------------------- asking the driver */

static nvmlReturn_t ask(struct view *view, const char *call)
{
    char request[64];

    snprintf(request, sizeof request, "state call=%s\n", call);
    view->device = NULL;
    view->text = sim_ask(request);
    if (view->text == NULL)
        return errno == EACCES || errno == EPERM ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    nvmlReturn_t code = (nvmlReturn_t)sim_value_number(view->text, "nvml", NVML_ERROR_UNKNOWN);
    if (code != NVML_SUCCESS) {
        free(view->text);
        view->text = NULL;
    }
    return code;
}

static const char *next_line(const char *line)
{
    line += strcspn(line, "\n");
    return *line == '\n' ? line + 1 : line;
}

static const char *find_device(const char *text, unsigned int index)
{
    for (const char *line = text; *line != '\0'; line = next_line(line))
        if (strncmp(line, "device ", 7) == 0 && sim_value_number(line, "index", UINT64_MAX) == index)
            return line;
    return NULL;
}

static bool is_handle(nvmlDevice_t device)
{
    return device >= devices && device < devices + DEVICES;
}

/* The driver's view for a call on a device. On success the caller frees view->text. */
static nvmlReturn_t ask_device(struct view *view, nvmlDevice_t device, const char *call)
{
    if (initialized == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (!is_handle(device))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = ask(view, call);
    if (code != NVML_SUCCESS)
        return code;
    view->device = find_device(view->text, device->index);
    if (view->device == NULL || sim_value_number(view->device, "lost", 0) != 0)
        code = NVML_ERROR_GPU_IS_LOST;
    if (code != NVML_SUCCESS)
        free(view->text);
    return code;
}

static bool is_discrete(const struct view *view)
{
    char type[16];

    return sim_value(view->device, "type", type, sizeof type) && strcmp(type, "discrete") == 0;
}

static nvmlReturn_t copy_text(char *out, unsigned int size, const char *text)
{
    size_t length = strlen(text) + 1;

    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (length > size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, length);
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- the library itself */

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    struct view view;

    (void)flags;
    nvmlReturn_t code = ask(&view, "init");
    if (code != NVML_SUCCESS)
        return code;
    free(view.text);
    initialized++;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlShutdown(void)
{
    if (initialized == 0)
        return NVML_ERROR_UNINITIALIZED;
    initialized--;
    return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t code)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "GPU access blocked by the operating system", "Driver/library version mismatch",
        "In use by another client", "Insufficient Memory", "No data", "VGPU ECC is not supported", "Insufficient Resources", "Freq Not Supported",
        "Argument version mismatch", "Deprecated", "Not Ready", "GPU Not Found", "Invalid State",
    };

    if (code < 0 || (size_t)code >= sizeof texts / sizeof texts[0])
        return "Unknown Error";
    return texts[code];
}

static nvmlReturn_t system_text(const char *key, char *out, unsigned int size)
{
    struct view view;
    char value[64];

    if (initialized == 0)
        return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t code = ask(&view, "init");
    if (code != NVML_SUCCESS)
        return code;
    sim_value(view.text, key, value, sizeof value);
    free(view.text);
    return copy_text(out, size, value);
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return system_text("version", version, length);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    char driver[64], cuda[64], text[160];
    nvmlReturn_t code = system_text("version", driver, sizeof driver);

    if (code == NVML_SUCCESS)
        code = system_text("cuda", cuda, sizeof cuda);
    if (code != NVML_SUCCESS)
        return code;
    cuda[strcspn(cuda, ".")] = '\0';
    snprintf(text, sizeof text, "%s.%s", cuda, driver);
    return copy_text(version, length, text);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    char cuda[64];
    uint64_t major = 0, minor = 0;

    if (version == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = system_text("cuda", cuda, sizeof cuda);
    if (code != NVML_SUCCESS)
        return code;
    char *dot = strchr(cuda, '.');
    if (dot != NULL) {
        *dot = '\0';
        sim_number(dot + 1, &minor);
    }
    sim_number(cuda, &major);
    *version = (int)(major * 1000 + minor * 10);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

/* argv[0] of the process, as the real library gives it. */
API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    struct view view;
    char path[64];
    bool unnamed = false;

    if (initialized == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (name == NULL || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = ask(&view, "name");
    if (code != NVML_SUCCESS)
        return code;
    for (const char *line = view.text; *line != '\0'; line = next_line(line))
        if (strncmp(line, "process ", 8) == 0 && sim_value_number(line, "pid", 0) == pid)
            unnamed = sim_value_number(line, "named", 1) == 0;
    free(view.text);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = unnamed ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NVML_ERROR_NOT_FOUND;
    ssize_t got = read(fd, name, length - 1);
    close(fd);
    if (got <= 0)
        return NVML_ERROR_NOT_FOUND;    /* ended, or a thread of the kernel */
    name[got] = '\0';
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- devices */

static nvmlReturn_t system_number(const char *key, uint64_t *value)
{
    char text[64];
    nvmlReturn_t code = system_text(key, text, sizeof text);

    if (code == NVML_SUCCESS && !sim_number(text, value))
        code = NVML_ERROR_UNKNOWN;
    return code;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    uint64_t value;

    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = system_number("gpus", &value);
    if (code == NVML_SUCCESS)
        *count = (unsigned int)value;
    return code;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    unsigned int count;
    struct view view;

    if (device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = nvmlDeviceGetCount_v2(&count);
    if (code != NVML_SUCCESS)
        return code;
    if (index >= count || index >= DEVICES)
        return NVML_ERROR_INVALID_ARGUMENT;
    code = ask_device(&view, &devices[index], "device");
    if (code != NVML_SUCCESS)
        return code;
    free(view.text);
    *device = &devices[index];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    struct view view;
    char value[96];
    nvmlReturn_t code = ask_device(&view, device, "device");

    if (code != NVML_SUCCESS)
        return code;
    sim_value(view.device, "uuid", value, sizeof value);
    free(view.text);
    return copy_text(uuid, length, value);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    unsigned int count;
    char own[96];

    if (uuid == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = nvmlDeviceGetCount_v2(&count);
    for (unsigned int i = 0; code == NVML_SUCCESS && i < count && i < DEVICES; i++) {
        code = nvmlDeviceGetUUID(&devices[i], own, sizeof own);
        if (code == NVML_SUCCESS && strcmp(own, uuid) == 0) {
            *device = &devices[i];
            return NVML_SUCCESS;
        }
    }
    return code == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : code;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    struct view view;
    nvmlReturn_t code = ask_device(&view, device, "device");

    if (code != NVML_SUCCESS)
        return code;
    const char *text = is_discrete(&view) ? "NVIDIA RTX PRO 4000 Blackwell" : "NVIDIA GB10";
    free(view.text);
    return copy_text(name, length, text);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct view view;

    if (pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = ask_device(&view, device, "device");
    if (code != NVML_SUCCESS)
        return code;
    memset(pci, 0, sizeof *pci);
    pci->domain = is_discrete(&view) ? 0x0 : 0xf;
    pci->bus = device->index + 1;
    pci->pciDeviceId = is_discrete(&view) ? 0x2C3410DE : 0x2E1210DE;
    pci->pciSubSystemId = 0x000010DE;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
    free(view.text);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    unsigned int count;
    nvmlPciInfo_t pci;

    if (bus_id == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = nvmlDeviceGetCount_v2(&count);
    for (unsigned int i = 0; code == NVML_SUCCESS && i < count && i < DEVICES; i++) {
        code = nvmlDeviceGetPciInfo_v3(&devices[i], &pci);
        if (code == NVML_SUCCESS && (strcasecmp(pci.busId, bus_id) == 0 || strcasecmp(pci.busIdLegacy, bus_id) == 0)) {
            *device = &devices[i];
            return NVML_SUCCESS;
        }
    }
    return code == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : code;
}

/* ---------------------------------------------------------------- memory */

/* Memory of a discrete second GPU is its own 24467 MiB; a GB10 has none of its own. */
static nvmlReturn_t memory(nvmlDevice_t device, uint64_t *total, uint64_t *used)
{
    struct view view;
    char variant[32];
    nvmlReturn_t code = ask_device(&view, device, "device");

    if (code != NVML_SUCCESS)
        return code;
    *total = *used = 0;
    sim_value(view.device, "memory_info", variant, sizeof variant);
    if (is_discrete(&view)) {
        *total = 24467 * MIB;
        *used = 300 * MIB;
        for (const char *line = view.text; *line != '\0'; line = next_line(line))
            if (strncmp(line, "process ", 8) == 0 && sim_value_number(line, "device", UINT64_MAX) == device->index
                && sim_value_number(line, "bytes", SIM_UNKNOWN) != SIM_UNKNOWN)
                *used += sim_value_number(line, "bytes", 0);
    } else if (strcmp(variant, "meminfo") == 0) {
        *total = sim_value_number(view.text, "total", 0);
        *used = *total - sim_value_number(view.text, "free", 0);
    } else if (strcmp(variant, "zero") != 0) {
        code = NVML_ERROR_NOT_SUPPORTED;
    }
    free(view.text);
    return code;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *info)
{
    uint64_t total, used;

    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = memory(device, &total, &used);
    if (code == NVML_SUCCESS)
        *info = (nvmlMemory_t){.total = total, .free = total - used, .used = used};
    return code;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *info)
{
    uint64_t total, used;

    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t code = memory(device, &total, &used);
    if (code == NVML_SUCCESS)
        *info = (nvmlMemory_v2_t){.version = NVML_MEMORY_V2, .total = total, .free = total - used, .used = used};
    return code;
}

/* ---------------------------------------------------------------- processes */

static nvmlReturn_t processes(nvmlDevice_t device, unsigned int kind, unsigned int *count, nvmlProcessInfo_t *infos, nvmlProcessInfo_v1_t *first)
{
    struct view view;
    unsigned int found = 0;

    if (count == NULL || (*count > 0 && infos == NULL && first == NULL))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = ask_device(&view, device, "processes");
    if (code != NVML_SUCCESS)
        return code;
    for (const char *line = view.text; *line != '\0'; line = next_line(line)) {
        if (strncmp(line, "process ", 8) != 0 || sim_value_number(line, "device", UINT64_MAX) != device->index)
            continue;
        if ((sim_value_number(line, "kinds", 0) & kind) == 0)
            continue;
        if (found < *count) {
            unsigned int pid = (unsigned int)sim_value_number(line, "pid", 0);
            unsigned long long bytes = sim_value_number(line, "bytes", SIM_UNKNOWN);
            if (infos != NULL)
                infos[found] = (nvmlProcessInfo_t){pid, bytes, NVML_NO_INSTANCE, NVML_NO_INSTANCE};
            if (first != NULL)
                first[found] = (nvmlProcessInfo_v1_t){pid, bytes};
        }
        found++;
    }
    free(view.text);
    code = found > *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    *count = found;
    return code;
}

#define PROCESS_LIST(NAME, KIND)                                                                                                     \
    API nvmlReturn_t NAME##_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)                                   \
    {                                                                                                                                \
        return processes(device, KIND, count, infos, NULL);                                                                          \
    }                                                                                                                                \
    API nvmlReturn_t NAME##_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)                                   \
    {                                                                                                                                \
        return processes(device, KIND, count, infos, NULL);                                                                          \
    }                                                                                                                                \
    API nvmlReturn_t NAME(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)                                     \
    {                                                                                                                                \
        return processes(device, KIND, count, NULL, infos);                                                                          \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, 1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, 2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, 4)

/* ---------------------------------------------------------------- what a GB10 answers with a value */

/* A number that is the same for every GB10, or one (key) of the device's line. */
static nvmlReturn_t device_number(nvmlDevice_t device, const char *key, unsigned int constant, unsigned int *out)
{
    struct view view;

    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = ask_device(&view, device, "device");
    if (code != NVML_SUCCESS)
        return code;
    *out = key == NULL ? constant : (unsigned int)sim_value_number(view.device, key, 0);
    free(view.text);
    return NVML_SUCCESS;
}

#define CONSTANT(NAME, VALUE)                                              \
    API nvmlReturn_t NAME(nvmlDevice_t device, unsigned int *value)        \
    {                                                                      \
        return device_number(device, NULL, VALUE, value);                  \
    }

CONSTANT(nvmlDeviceGetArchitecture, 10)         /* Blackwell */
CONSTANT(nvmlDeviceGetBrand, 13)                /* NVIDIA RTX */
CONSTANT(nvmlDeviceGetComputeMode, 0)           /* Default */
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetDisplayMode, 0)
CONSTANT(nvmlDeviceGetAccountingMode, 0)
CONSTANT(nvmlDeviceGetMultiGpuBoard, 0)
CONSTANT(nvmlDeviceGetNumGpuCores, 6144)        /* 48 SMs of 128 */
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, 1)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, 1)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, 1)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, 16)
CONSTANT(nvmlDeviceIsMigDeviceHandle, 0)

API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode)
{
    return device_number(device, "persistence", 0, mode);
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    nvmlReturn_t code = device_number(device, "power", 0, milliwatts);

    if (code == NVML_SUCCESS)
        *milliwatts *= 1000;
    return code;
}

API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *state)
{
    nvmlReturn_t code = device_number(device, "utilization", 0, state);

    if (code == NVML_SUCCESS)
        *state = *state > 0 ? 0 : 8;
    return code;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    if (rates == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    rates->memory = 0;
    return device_number(device, "utilization", 0, &rates->gpu);
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return device_number(device, "temperature", 0, celsius);
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *reading)
{
    unsigned int celsius;

    if (reading == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (reading->version != NVML_TEMPERATURE_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t code = nvmlDeviceGetTemperature(device, reading->sensorType, &celsius);
    if (code == NVML_SUCCESS)
        reading->temperature = (int)celsius;
    return code;
}

enum clock { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO };

static nvmlReturn_t clock_of(nvmlDevice_t device, unsigned int type, unsigned int mhz, unsigned int *out)
{
    if (type > CLOCK_VIDEO)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = device_number(device, NULL, mhz, out);
    return code == NVML_SUCCESS && type == CLOCK_MEMORY ? NVML_ERROR_NOT_SUPPORTED : code;
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    return clock_of(device, type, type == CLOCK_VIDEO ? 598 : 208, mhz);
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    return clock_of(device, type, 3003, mhz);
}

API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    return clock_of(device, type, 2418, mhz);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    struct view view;

    if (major == NULL || minor == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = ask_device(&view, device, "device");
    if (code != NVML_SUCCESS)
        return code;
    *major = 12;
    *minor = is_discrete(&view) ? 0 : 1;
    free(view.text);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    return device_number(device, "index", 0, index);
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    return device_number(device, "index", 0, minor);
}

API nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *board)
{
    nvmlReturn_t code = device_number(device, "index", 0, board);

    if (code == NVML_SUCCESS)
        *board = 0xf0100 + *board * 0x100;
    return code;
}

static nvmlReturn_t device_text(nvmlDevice_t device, const char *text, char *out, unsigned int size)
{
    struct view view;
    nvmlReturn_t code = ask_device(&view, device, "device");

    if (code != NVML_SUCCESS)
        return code;
    free(view.text);
    return copy_text(out, size, text);
}

API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    return device_text(device, "9A.0B.25.00.00", version, length);
}

API nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    char driver[64];
    nvmlReturn_t code = system_text("version", driver, sizeof driver);

    return code == NVML_SUCCESS ? device_text(device, driver, version, 64) : code;
}

API nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
    struct view view;

    if (mode == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (mode->version != NVML_ADDRESSING_MODE_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t code = ask_device(&view, device, "device");
    if (code != NVML_SUCCESS)
        return code;
    mode->value = is_discrete(&view) ? 1 : 2;   /* HMM, ATS */
    free(view.text);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *info)
{
    struct view view;

    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = ask_device(&view, device, "device");
    if (code != NVML_SUCCESS)
        return code;
    info->isC2cEnabled = is_discrete(&view) ? 0 : 1;
    free(view.text);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
    struct view view;

    if (words == 0 || set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = ask_device(&view, device, "device");
    if (code != NVML_SUCCESS)
        return code;
    free(view.text);
    memset(set, 0, words * sizeof *set);
    set[0] = 0xfffff;           /* 0-19, the cores of a Spark */
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
    if (initialized == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- what a GB10 answers with "Not Supported" */

#define NOT_SUPPORTED(NAME)                                                \
    API nvmlReturn_t NAME(nvmlDevice_t device)                             \
    {                                                                      \
        unsigned int value;                                                \
        nvmlReturn_t code = device_number(device, NULL, 0, &value);        \
        return code == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : code;     \
    }

NOT_SUPPORTED(nvmlDeviceGetBAR1MemoryInfo)
NOT_SUPPORTED(nvmlDeviceGetMigMode)
NOT_SUPPORTED(nvmlDeviceGetMaxMigDeviceCount)
NOT_SUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex)
NOT_SUPPORTED(nvmlDeviceGetAttributes)
NOT_SUPPORTED(nvmlDeviceGetAttributes_v2)
NOT_SUPPORTED(nvmlDeviceGetNumaNodeId)
NOT_SUPPORTED(nvmlDeviceGetSerial)
NOT_SUPPORTED(nvmlDeviceGetBoardPartNumber)
NOT_SUPPORTED(nvmlDeviceGetInforomVersion)
NOT_SUPPORTED(nvmlDeviceGetInforomImageVersion)
NOT_SUPPORTED(nvmlDeviceGetBridgeChipInfo)
NOT_SUPPORTED(nvmlDeviceGetFanSpeed)
NOT_SUPPORTED(nvmlDeviceGetFanSpeed_v2)
NOT_SUPPORTED(nvmlDeviceGetNumFans)
NOT_SUPPORTED(nvmlDeviceGetTemperatureThreshold)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementMode)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementLimit)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementLimitConstraints)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementDefaultLimit)
NOT_SUPPORTED(nvmlDeviceGetEnforcedPowerLimit)
NOT_SUPPORTED(nvmlDeviceGetTotalEnergyConsumption)
NOT_SUPPORTED(nvmlDeviceGetEccMode)
NOT_SUPPORTED(nvmlDeviceGetDefaultEccMode)
NOT_SUPPORTED(nvmlDeviceGetTotalEccErrors)
NOT_SUPPORTED(nvmlDeviceGetDetailedEccErrors)
NOT_SUPPORTED(nvmlDeviceGetMemoryErrorCounter)
NOT_SUPPORTED(nvmlDeviceGetRetiredPages)
NOT_SUPPORTED(nvmlDeviceGetRetiredPages_v2)
NOT_SUPPORTED(nvmlDeviceGetRetiredPagesPendingStatus)
NOT_SUPPORTED(nvmlDeviceGetRemappedRows)
NOT_SUPPORTED(nvmlDeviceGetMemoryBusWidth)
NOT_SUPPORTED(nvmlDeviceGetSupportedMemoryClocks)
NOT_SUPPORTED(nvmlDeviceGetSupportedGraphicsClocks)
NOT_SUPPORTED(nvmlDeviceGetEncoderUtilization)
NOT_SUPPORTED(nvmlDeviceGetDecoderUtilization)
NOT_SUPPORTED(nvmlDeviceGetJpgUtilization)
NOT_SUPPORTED(nvmlDeviceGetOfaUtilization)
NOT_SUPPORTED(nvmlDeviceGetPcieThroughput)
NOT_SUPPORTED(nvmlDeviceGetPcieReplayCounter)
NOT_SUPPORTED(nvmlDeviceGetNvLinkState)
NOT_SUPPORTED(nvmlDeviceGetNvLinkVersion)
NOT_SUPPORTED(nvmlDeviceGetGpuFabricInfo)
NOT_SUPPORTED(nvmlDeviceGetGpuFabricInfoV)
NOT_SUPPORTED(nvmlDeviceGetProcessUtilization)
NOT_SUPPORTED(nvmlDeviceGetProcessesUtilizationInfo)
NOT_SUPPORTED(nvmlDeviceGetRunningProcessDetailList)
NOT_SUPPORTED(nvmlDeviceGetAccountingStats)
NOT_SUPPORTED(nvmlDeviceGetAccountingPids)
NOT_SUPPORTED(nvmlDeviceGetMemoryAffinity)
NOT_SUPPORTED(nvmlDeviceGetCpuAffinityWithinScope)
NOT_SUPPORTED(nvmlDeviceGetConfComputeProtectedMemoryUsage)
NOT_SUPPORTED(nvmlDeviceGetConfComputeMemSizeInfo)
NOT_SUPPORTED(nvmlDeviceGetGpuOperationMode)
NOT_SUPPORTED(nvmlDeviceGetFieldValues)
NOT_SUPPORTED(nvmlDeviceSetPowerManagementLimit)
