/*
 * SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * nvidia-smi of a simulated GB10: the texts of driver 580 (and, by the version that the driver says, of 610 and newer), on
 * top of libnvidia-ml.so.1 as the real one is, so that the two never disagree.
 */
#include "nvml.h"
#include "sim.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEVICES 8
#define PROCESSES 512
#define FIELDS 64
#define USAGE_ERROR 2
#define NO_DEVICE 6
#define LIBRARY_MISSING 12
#define LIBRARY_VERSION "580.159"       /* what a mismatched library says of itself */

static struct {
    nvmlReturn_t (*init)(unsigned int);
    const char *(*error)(nvmlReturn_t);
    nvmlReturn_t (*driver)(char *, unsigned int);
    nvmlReturn_t (*cuda)(int *);
    nvmlReturn_t (*process_name)(unsigned int, char *, unsigned int);
    nvmlReturn_t (*count)(unsigned int *);
    nvmlReturn_t (*by_index)(unsigned int, nvmlDevice_t *);
    nvmlReturn_t (*name)(nvmlDevice_t, char *, unsigned int);
    nvmlReturn_t (*uuid)(nvmlDevice_t, char *, unsigned int);
    nvmlReturn_t (*vbios)(nvmlDevice_t, char *, unsigned int);
    nvmlReturn_t (*pci)(nvmlDevice_t, nvmlPciInfo_t *);
    nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t *);
    nvmlReturn_t (*compute)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);
    nvmlReturn_t (*graphics)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);
    nvmlReturn_t (*persistence)(nvmlDevice_t, unsigned int *);
    nvmlReturn_t (*power)(nvmlDevice_t, unsigned int *);
    nvmlReturn_t (*state)(nvmlDevice_t, unsigned int *);
    nvmlReturn_t (*utilization)(nvmlDevice_t, nvmlUtilization_t *);
    nvmlReturn_t (*temperature)(nvmlDevice_t, unsigned int, unsigned int *);
    nvmlReturn_t (*clock)(nvmlDevice_t, unsigned int, unsigned int *);
    nvmlReturn_t (*max_clock)(nvmlDevice_t, unsigned int, unsigned int *);
    nvmlReturn_t (*capability)(nvmlDevice_t, int *, int *);
    nvmlReturn_t (*addressing)(nvmlDevice_t, nvmlDeviceAddressingMode_t *);
    nvmlReturn_t (*c2c)(nvmlDevice_t, nvmlC2cModeInfo_v1_t *);
} nvml;

struct process {
    unsigned int pid;
    bool compute, graphics;
    unsigned long long bytes;
    char name[1024];
};

struct gpu {
    nvmlDevice_t handle;
    unsigned int index;
    char name[96], uuid[96], vbios[32];
    nvmlPciInfo_t pci;
    bool has_memory, persistence, ats, c2c;
    nvmlMemory_t memory;
    unsigned int watts, state, temperature;
    nvmlUtilization_t utilization;
    unsigned int graphics_clock, video_clock, max_clock;
    int major, minor;
    struct process *processes;
    size_t process_count;
};

static struct gpu gpus[DEVICES];
static size_t gpu_count;
static char driver_version[80], cuda_version[16];
static bool kmd_text;           /* 610 and newer: "KMD Version" */

/* ---------------------------------------------------------------- reading */

static void load_library(void)
{
    static const struct {
        void *slot;
        const char *symbol;
    } symbols[] = {
        {&nvml.init, "nvmlInitWithFlags"},
        {&nvml.error, "nvmlErrorString"},
        {&nvml.driver, "nvmlSystemGetDriverVersion"},
        {&nvml.cuda, "nvmlSystemGetCudaDriverVersion_v2"},
        {&nvml.process_name, "nvmlSystemGetProcessName"},
        {&nvml.count, "nvmlDeviceGetCount_v2"},
        {&nvml.by_index, "nvmlDeviceGetHandleByIndex_v2"},
        {&nvml.name, "nvmlDeviceGetName"},
        {&nvml.uuid, "nvmlDeviceGetUUID"},
        {&nvml.vbios, "nvmlDeviceGetVbiosVersion"},
        {&nvml.pci, "nvmlDeviceGetPciInfo_v3"},
        {&nvml.memory, "nvmlDeviceGetMemoryInfo"},
        {&nvml.compute, "nvmlDeviceGetComputeRunningProcesses_v3"},
        {&nvml.graphics, "nvmlDeviceGetGraphicsRunningProcesses_v3"},
        {&nvml.persistence, "nvmlDeviceGetPersistenceMode"},
        {&nvml.power, "nvmlDeviceGetPowerUsage"},
        {&nvml.state, "nvmlDeviceGetPerformanceState"},
        {&nvml.utilization, "nvmlDeviceGetUtilizationRates"},
        {&nvml.temperature, "nvmlDeviceGetTemperature"},
        {&nvml.clock, "nvmlDeviceGetClockInfo"},
        {&nvml.max_clock, "nvmlDeviceGetMaxClockInfo"},
        {&nvml.capability, "nvmlDeviceGetCudaComputeCapability"},
        {&nvml.addressing, "nvmlDeviceGetAddressingMode"},
        {&nvml.c2c, "nvmlDeviceGetC2cModeInfoV"},
    };
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

    for (size_t i = 0; library != NULL && i < sizeof symbols / sizeof symbols[0]; i++) {
        void *found = dlsym(library, symbols[i].symbol);
        if (found == NULL)
            library = NULL;
        memcpy(symbols[i].slot, &found, sizeof found);
    }
    if (library != NULL)
        return;
    puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver is properly installed and present in your "
         "system.\nPlease also try adding directory that contains libnvidia-ml.so to your system PATH.");
    exit(LIBRARY_MISSING);
}

static void must(nvmlReturn_t code, const char *what)
{
    if (code == NVML_SUCCESS)
        return;
    printf("%s: %s\n", what, nvml.error(code));
    exit(code == NVML_ERROR_UNKNOWN ? 255 : code);
}

static void initialize(void)
{
    nvmlReturn_t code = nvml.init(0);

    if (code == NVML_ERROR_DRIVER_NOT_LOADED) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n");
        exit(code);
    }
    if (code == NVML_ERROR_LIB_RM_VERSION_MISMATCH) {
        printf("Failed to initialize NVML: %s\nNVML library version: " LIBRARY_VERSION "\n", nvml.error(code));
        exit(code);
    }
    must(code, "Failed to initialize NVML");
}

static void read_versions(void)
{
    int cuda = 0;
    uint64_t major = 0;
    char number[16];

    must(nvml.driver(driver_version, sizeof driver_version), "Unable to determine the driver version");
    must(nvml.cuda(&cuda), "Unable to determine the CUDA version");
    snprintf(cuda_version, sizeof cuda_version, "%d.%d", cuda / 1000, cuda % 1000 / 10);
    snprintf(number, sizeof number, "%.*s", (int)strcspn(driver_version, "."), driver_version);
    kmd_text = sim_number(number, &major) && major >= 610;
}

static struct process *find_process(struct gpu *gpu, unsigned int pid)
{
    for (size_t i = 0; i < gpu->process_count; i++)
        if (gpu->processes[i].pid == pid)
            return &gpu->processes[i];
    if (gpu->process_count == PROCESSES)
        return NULL;
    struct process *process = &gpu->processes[gpu->process_count++];
    process->pid = pid;
    process->bytes = SIM_UNKNOWN;
    if (nvml.process_name(pid, process->name, sizeof process->name) != NVML_SUCCESS)
        snprintf(process->name, sizeof process->name, "[Not Found]");
    return process;
}

static int by_pid(const void *left, const void *right)
{
    const struct process *a = left, *b = right;

    return (a->pid > b->pid) - (a->pid < b->pid);
}

static void read_processes(struct gpu *gpu)
{
    static nvmlProcessInfo_t infos[PROCESSES];
    nvmlReturn_t (*const lists[])(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *) = {nvml.compute, nvml.graphics};

    gpu->processes = calloc(PROCESSES, sizeof *gpu->processes);
    if (gpu->processes == NULL)
        exit(NVML_ERROR_MEMORY);
    for (int kind = 0; kind < 2; kind++) {
        unsigned int count = PROCESSES;
        if (lists[kind](gpu->handle, &count, infos) != NVML_SUCCESS)
            continue;
        for (unsigned int i = 0; i < count; i++) {
            struct process *process = find_process(gpu, infos[i].pid);
            if (process == NULL)
                continue;
            process->bytes = infos[i].usedGpuMemory;
            process->compute |= kind == 0;
            process->graphics |= kind == 1;
        }
    }
    qsort(gpu->processes, gpu->process_count, sizeof *gpu->processes, by_pid);
}

static void read_gpu(struct gpu *gpu, unsigned int index)
{
    nvmlDeviceAddressingMode_t addressing = {.version = NVML_ADDRESSING_MODE_V1};
    nvmlC2cModeInfo_v1_t c2c = {0};
    unsigned int persistence = 0, milliwatts = 0;
    nvmlReturn_t code = nvml.by_index(index, &gpu->handle);

    gpu->index = index;
    if (code == NVML_ERROR_GPU_IS_LOST) {
        printf("Unable to determine the device handle for GPU%u: %s.  Reboot the system to recover this GPU\n", index, nvml.error(code));
        exit(code);
    }
    must(code, "Unable to determine the device handle");
    nvml.name(gpu->handle, gpu->name, sizeof gpu->name);
    nvml.uuid(gpu->handle, gpu->uuid, sizeof gpu->uuid);
    nvml.vbios(gpu->handle, gpu->vbios, sizeof gpu->vbios);
    nvml.pci(gpu->handle, &gpu->pci);
    gpu->has_memory = nvml.memory(gpu->handle, &gpu->memory) == NVML_SUCCESS;
    nvml.persistence(gpu->handle, &persistence);
    gpu->persistence = persistence != 0;
    nvml.power(gpu->handle, &milliwatts);
    gpu->watts = milliwatts / 1000;
    nvml.state(gpu->handle, &gpu->state);
    nvml.utilization(gpu->handle, &gpu->utilization);
    nvml.temperature(gpu->handle, 0, &gpu->temperature);
    nvml.clock(gpu->handle, 0, &gpu->graphics_clock);
    nvml.clock(gpu->handle, 3, &gpu->video_clock);
    nvml.max_clock(gpu->handle, 0, &gpu->max_clock);
    nvml.capability(gpu->handle, &gpu->major, &gpu->minor);
    gpu->ats = nvml.addressing(gpu->handle, &addressing) == NVML_SUCCESS && addressing.value == 2;
    gpu->c2c = nvml.c2c(gpu->handle, &c2c) == NVML_SUCCESS && c2c.isC2cEnabled != 0;
}

/* only: an index, a UUID or a bus id of -i, or NULL. */
static void read_gpus(const char *only)
{
    unsigned int count = 0;

    must(nvml.count(&count), "Unable to determine the device count");
    if (count == 0) {
        puts("No devices were found");
        exit(NO_DEVICE);
    }
    for (unsigned int i = 0; i < count && i < DEVICES; i++) {
        struct gpu *gpu = &gpus[gpu_count];
        char index[16];
        read_gpu(gpu, i);
        snprintf(index, sizeof index, "%u", i);
        if (only == NULL || strcmp(only, index) == 0 || strcmp(only, gpu->uuid) == 0 || strcasecmp(only, gpu->pci.busId) == 0)
            gpu_count++;
    }
    if (gpu_count == 0) {
        puts("No devices were found");
        exit(NO_DEVICE);
    }
}

static const char *type_of(const struct process *process)
{
    return process->compute && process->graphics ? "C+G" : process->compute ? "C" : "G";
}

static const char *now_text(const char *format)
{
    static char text[64];
    time_t now = time(NULL);
    struct tm local;

    localtime_r(&now, &local);
    if (strftime(text, sizeof text, format, &local) == 0)
        text[0] = '\0';
    return text;
}

/* ---------------------------------------------------------------- the table */

static void rule(void)
{
    puts("+-----------------------------------------+------------------------+----------------------+");
}

/* The end of a name that is too long is what tells processes apart. */
static void shorten(char *out, size_t size, const char *name)
{
    size_t length = strlen(name);

    if (length <= 32)
        snprintf(out, size, "%s", name);
    else
        snprintf(out, size, "...%s", name + length - 29);
}

static void print_table(void)
{
    bool any = false;

    printf("%s       \n", now_text("%a %b %e %H:%M:%S %Y"));
    puts("+-----------------------------------------------------------------------------------------+");
    if (kmd_text)
        printf("| NVIDIA-SMI %-22s KMD Version: %-13s CUDA UMD Version: %-8s |\n", driver_version, driver_version, cuda_version);
    else
        printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", driver_version, driver_version, cuda_version);
    rule();
    puts("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |");
    puts("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |");
    puts("|                                         |                        |               MIG M. |");
    puts("|=========================================+========================+======================|");
    for (size_t i = 0; i < gpu_count; i++) {
        const struct gpu *gpu = &gpus[i];
        char name[96], cell[64] = " Not Supported          ";
        snprintf(name, sizeof name, strlen(gpu->name) > 27 ? "%.24s..." : "%s", gpu->name);
        if (gpu->has_memory)
            snprintf(cell, sizeof cell, "%8lluMiB / %6lluMiB ", gpu->memory.used / MIB, gpu->memory.total / MIB);
        printf("| %3u  %-31s%-4s|%19s %3s |%21s |\n", gpu->index, name, gpu->persistence ? "On" : "Off", gpu->pci.busId, "Off", "N/A");
        printf("|%4s%5uC    P%-2u%14uW / %-5s |%s|%7u%%%13s |\n", "N/A", gpu->temperature, gpu->state, gpu->watts, " N/A ", cell, gpu->utilization.gpu, "Default");
        printf("|%41s|%24s|%21s |\n", "", "", "N/A");
        rule();
    }
    puts("\n+-----------------------------------------------------------------------------------------+\n"
         "| Processes:                                                                              |\n"
         "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
         "|        ID   ID                                                               Usage      |\n"
         "|=========================================================================================|");
    for (size_t i = 0; i < gpu_count; i++) {
        for (size_t j = 0; j < gpus[i].process_count; j++) {
            const struct process *process = &gpus[i].processes[j];
            char name[48], memory[32] = "N/A";
            shorten(name, sizeof name, process->name);
            if (process->bytes != SIM_UNKNOWN)
                snprintf(memory, sizeof memory, "%lluMiB", process->bytes / MIB);
            printf("|%5u   N/A  N/A%16u%7s   %-32s%14s |\n", gpus[i].index, process->pid, type_of(process), name, memory);
            any = true;
        }
    }
    if (!any)
        puts("|  No running processes found                                                             |");
    puts("+-----------------------------------------------------------------------------------------+");
}

/* ---------------------------------------------------------------- -q and -q -x */

static bool as_xml;
static int depth;
static const char *open_tags[8];

static void put_xml_text(const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", stdout);
            break;
        case '<':
            fputs("&lt;", stdout);
            break;
        case '>':
            fputs("&gt;", stdout);
            break;
        default:
            putchar(*text);
        }
    }
}

static void indent(void)
{
    for (int i = 0; i < depth; i++)
        fputs(as_xml ? "\t" : "    ", stdout);
}

static void begin(const char *label, const char *tag)
{
    indent();
    if (as_xml)
        printf("<%s>\n", tag);
    else
        printf("%s\n", label);
    open_tags[depth++] = tag;
}

static void end(void)
{
    depth--;
    if (as_xml) {
        indent();
        printf("</%s>\n", open_tags[depth]);
    }
}

static void leaf(const char *label, const char *tag, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void leaf(const char *label, const char *tag, const char *format, ...)
{
    char value[1100];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    indent();
    if (as_xml) {
        printf("<%s>", tag);
        put_xml_text(value);
        printf("</%s>\n", tag);
    } else {
        printf("%-*s: %s\n", 55 - 4 * depth, label, value);
    }
}

static void missing(const char *label, const char *tag)
{
    leaf(label, tag, "N/A");
}

static void size_leaf(const char *label, const char *tag, bool known, unsigned long long bytes)
{
    if (known)
        leaf(label, tag, "%llu MiB", bytes / MIB);
    else
        missing(label, tag);
}

static void print_process_text(const struct process *process)
{
    printf("        GPU instance ID                   : N/A\n"
           "        Compute instance ID               : N/A\n"
           "        Process ID                        : %u\n"
           "            Type                          : %s\n"
           "            Name                          : %s\n",
           process->pid, type_of(process), process->name);
    if (process->bytes == SIM_UNKNOWN)
        puts("            Used GPU Memory               : N/A");
    else
        printf("            Used GPU Memory               : %llu MiB\n", process->bytes / MIB);
}

static void print_process_list(const struct gpu *gpu)
{
    if (!as_xml && gpu->process_count == 0) {
        leaf("Processes", "processes", "None");
        return;
    }
    begin("Processes", "processes");
    for (size_t i = 0; i < gpu->process_count; i++) {
        const struct process *process = &gpu->processes[i];
        if (!as_xml) {
            print_process_text(process);
            continue;
        }
        begin("", "process_info");
        missing("", "gpu_instance_id");
        missing("", "compute_instance_id");
        leaf("", "pid", "%u", process->pid);
        leaf("", "type", "%s", type_of(process));
        leaf("", "process_name", "%s", process->name);
        size_leaf("", "used_memory", process->bytes != SIM_UNKNOWN, process->bytes);
        end();
    }
    end();
}

static void print_identity(const struct gpu *gpu)
{
    leaf("Product Name", "product_name", "%s", gpu->name);
    leaf("Product Brand", "product_brand", "NVIDIA RTX");
    leaf("Product Architecture", "product_architecture", "Blackwell");
    leaf("Display Mode", "display_mode", "Requested functionality has been deprecated");
    leaf("Display Attached", "display_attached", "No");
    leaf("Display Active", "display_active", "Disabled");
    leaf("Persistence Mode", "persistence_mode", gpu->persistence ? "Enabled" : "Disabled");
    leaf("Addressing Mode", "addressing_mode", gpu->ats ? "ATS" : "HMM");
    begin("MIG Mode", "mig_mode");
    missing("Current", "current_mig");
    missing("Pending", "pending_mig");
    end();
    leaf("Accounting Mode", "accounting_mode", "Disabled");
    leaf("Accounting Mode Buffer Size", "accounting_mode_buffer_size", "4000");
    begin("Driver Model", "driver_model");
    missing("Current", "current_dm");
    missing("Pending", "pending_dm");
    end();
    missing("Serial Number", "serial");
    leaf("GPU UUID", "uuid", "%s", gpu->uuid);
    leaf("Minor Number", "minor_number", "%u", gpu->index);
    leaf("VBIOS Version", "vbios_version", "%s", gpu->vbios);
    leaf("MultiGPU Board", "multigpu_board", "No");
    leaf("Board ID", "board_id", "0x%x", 0xf0100 + gpu->index * 0x100);
    missing("Board Part Number", "board_part_number");
    leaf("GPU Part Number", "gpu_part_number", "%04X-%s", gpu->pci.pciDeviceId >> 16, "893-A1");
    missing("FRU Part Number", "gpu_fru_part_number");
    begin("Platform Info", "platformInfo");
    missing("Chassis Serial Number", "chassis_serial_number");
    missing("Slot Number", "slot_number");
    missing("Tray Index", "tray_index");
    missing("Host ID", "host_id");
    leaf("Peer Type", "peer_type", gpu->ats ? "Direct Connected" : "N/A");
    leaf("Module Id", "module_id", "1");
    missing("GPU Fabric GUID", "gpu_fabric_guid");
    end();
    leaf("GPU C2C Mode", "c2c_mode", gpu->c2c ? "Enabled" : "Disabled");
    leaf("GSP Firmware Version", "gsp_firmware_version", "%s", driver_version);
}

static void print_pci(const struct gpu *gpu)
{
    begin("PCI", "pci");
    leaf("Bus", "pci_bus", "0x%02X", gpu->pci.bus);
    leaf("Device", "pci_device", "0x%02X", gpu->pci.device);
    leaf("Domain", "pci_domain", "0x%04X", gpu->pci.domain);
    leaf("Base Classcode", "pci_base_class", "0x3");
    leaf("Sub Classcode", "pci_sub_class", "0x0");
    leaf("Device Id", "pci_device_id", "0x%08X", gpu->pci.pciDeviceId);
    leaf("Bus Id", "pci_bus_id", "%s", gpu->pci.busId);
    leaf("Sub System Id", "pci_sub_system_id", "0x%08X", gpu->pci.pciSubSystemId);
    begin("GPU Link Info", "pci_gpu_link_info");
    begin("PCIe Generation", "pcie_gen");
    leaf("Max", "max_link_gen", "1");
    leaf("Current", "current_link_gen", "1");
    leaf("Device Current", "device_current_link_gen", "1");
    leaf("Device Max", "max_device_link_gen", "5");
    leaf("Host Max", "max_host_link_gen", "5");
    end();
    begin("Link Width", "link_widths");
    leaf("Max", "max_link_width", "16x");
    leaf("Current", "current_link_width", "1x");
    end();
    end();
    end();
}

static void print_readings(const struct gpu *gpu)
{
    missing("Fan Speed", "fan_speed");
    leaf("Performance State", "performance_state", "P%u", gpu->state);
    begin("FB Memory Usage", "fb_memory_usage");
    size_leaf("Total", "total", gpu->has_memory, gpu->memory.total);
    missing("Reserved", "reserved");
    size_leaf("Used", "used", gpu->has_memory, gpu->memory.used);
    size_leaf("Free", "free", gpu->has_memory, gpu->memory.free);
    end();
    begin("BAR1 Memory Usage", "bar1_memory_usage");
    missing("Total", "total");
    missing("Used", "used");
    missing("Free", "free");
    end();
    begin("Conf Compute Protected Memory Usage", "cc_protected_memory_usage");
    missing("Total", "total");
    missing("Used", "used");
    missing("Free", "free");
    end();
    leaf("Compute Mode", "compute_mode", "Default");
    begin("Utilization", "utilization");
    leaf("GPU", "gpu_util", "%u %%", gpu->utilization.gpu);
    leaf("Memory", "memory_util", "%u %%", gpu->utilization.memory);
    leaf("Encoder", "encoder_util", "0 %%");
    leaf("Decoder", "decoder_util", "0 %%");
    leaf("JPEG", "jpeg_util", "0 %%");
    leaf("OFA", "ofa_util", "0 %%");
    end();
    begin("ECC Mode", "ecc_mode");
    missing("Current", "current_ecc");
    missing("Pending", "pending_ecc");
    end();
    begin("Temperature", "temperature");
    leaf("GPU Current Temp", "gpu_temp", "%u C", gpu->temperature);
    missing("Memory Current Temp", "memory_temp");
    end();
    begin("GPU Power Readings", "gpu_power_readings");
    leaf("Average Power Draw", "average_power_draw", "%u.00 W", gpu->watts);
    leaf("Instantaneous Power Draw", "instant_power_draw", "%u.00 W", gpu->watts);
    missing("Current Power Limit", "current_power_limit");
    missing("Requested Power Limit", "requested_power_limit");
    missing("Default Power Limit", "default_power_limit");
    missing("Min Power Limit", "min_power_limit");
    missing("Max Power Limit", "max_power_limit");
    end();
    begin("Clocks", "clocks");
    leaf("Graphics", "graphics_clock", "%u MHz", gpu->graphics_clock);
    leaf("SM", "sm_clock", "%u MHz", gpu->graphics_clock);
    missing("Memory", "mem_clock");
    leaf("Video", "video_clock", "%u MHz", gpu->video_clock);
    end();
    begin("Max Clocks", "max_clocks");
    leaf("Graphics", "graphics_clock", "%u MHz", gpu->max_clock);
    leaf("SM", "sm_clock", "%u MHz", gpu->max_clock);
    missing("Memory", "mem_clock");
    leaf("Video", "video_clock", "%u MHz", gpu->max_clock);
    end();
}

static void print_query(void)
{
    static const char *const deprecated = " [Deprecated; will be removed in CUDA 14.0. Use %s instead]";
    char driver_note[96] = "", cuda_note[96] = "";

    if (kmd_text) {
        snprintf(driver_note, sizeof driver_note, deprecated, "KMD Version");
        snprintf(cuda_note, sizeof cuda_note, deprecated, "CUDA UMD Version");
    }
    if (as_xml)
        puts("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v13.dtd\">\n<nvidia_smi_log>");
    else
        puts("\n==============NVSMI LOG==============\n");
    depth = as_xml ? 1 : 0;
    leaf("Timestamp", "timestamp", "%s", now_text("%a %b %e %H:%M:%S %Y"));
    leaf("Driver Version", "driver_version", "%s%s", driver_version, driver_note);
    leaf("CUDA Version", "cuda_version", "%s%s", cuda_version, cuda_note);
    if (kmd_text) {
        leaf("KMD Version", "kmd_version", "%s", driver_version);
        leaf("CUDA UMD Version", "cuda_umd_version", "%s", cuda_version);
    }
    if (!as_xml)
        putchar('\n');
    leaf("Attached GPUs", "attached_gpus", "%zu", gpu_count);
    for (size_t i = 0; i < gpu_count; i++) {
        if (as_xml)
            printf("\t<gpu id=\"%s\">\n", gpus[i].pci.busId);
        else
            printf("GPU %s\n", gpus[i].pci.busId);
        depth++;
        print_identity(&gpus[i]);
        print_pci(&gpus[i]);
        print_readings(&gpus[i]);
        print_process_list(&gpus[i]);
        depth--;
        if (as_xml)
            puts("\t</gpu>");
        else
            putchar('\n');
    }
    if (as_xml)
        puts("</nvidia_smi_log>");
}

/* ---------------------------------------------------------------- --query-gpu and --query-compute-apps */

struct row {
    const struct gpu *gpu;
    const struct process *process;
};

struct field {
    const char *names;          /* "canonical|other|other" */
    const char *unit;           /* for the header; NULL for none */
    bool (*value)(const struct row *row, char *out, size_t size);       /* false: N/A */
};

static bool f_timestamp(const struct row *row, char *out, size_t size)
{
    (void)row;
    snprintf(out, size, "%s", now_text("%Y/%m/%d %H:%M:%S.000"));
    return true;
}

#define TEXT_FIELD(NAME, FORMAT, ...)                                          \
    static bool NAME(const struct row *row, char *out, size_t size)            \
    {                                                                          \
        (void)row;                                                             \
        snprintf(out, size, FORMAT, __VA_ARGS__);                              \
        return true;                                                           \
    }

#define MEMORY_FIELD(NAME, MEMBER)                                             \
    static bool NAME(const struct row *row, char *out, size_t size)            \
    {                                                                          \
        snprintf(out, size, "%llu", row->gpu->memory.MEMBER / MIB);            \
        return row->gpu->has_memory;                                           \
    }

TEXT_FIELD(f_driver, "%s", driver_version)
TEXT_FIELD(f_count, "%zu", gpu_count)
TEXT_FIELD(f_name, "%s", row->gpu->name)
TEXT_FIELD(f_uuid, "%s", row->gpu->uuid)
TEXT_FIELD(f_index, "%u", row->gpu->index)
TEXT_FIELD(f_bus_id, "%s", row->gpu->pci.busId)
TEXT_FIELD(f_domain, "0x%04X", row->gpu->pci.domain)
TEXT_FIELD(f_bus, "0x%02X", row->gpu->pci.bus)
TEXT_FIELD(f_pci_device, "0x%02X", row->gpu->pci.device)
TEXT_FIELD(f_device_id, "0x%08X", row->gpu->pci.pciDeviceId)
TEXT_FIELD(f_sub_device_id, "0x%08X", row->gpu->pci.pciSubSystemId)
TEXT_FIELD(f_vbios, "%s", row->gpu->vbios)
TEXT_FIELD(f_persistence, "%s", row->gpu->persistence ? "Enabled" : "Disabled")
TEXT_FIELD(f_capability, "%d.%d", row->gpu->major, row->gpu->minor)
TEXT_FIELD(f_addressing, "%s", row->gpu->ats ? "ATS" : "HMM")
TEXT_FIELD(f_state, "P%u", row->gpu->state)
TEXT_FIELD(f_utilization, "%u", row->gpu->utilization.gpu)
TEXT_FIELD(f_memory_utilization, "%u", row->gpu->utilization.memory)
TEXT_FIELD(f_temperature, "%u", row->gpu->temperature)
TEXT_FIELD(f_power, "%u.00", row->gpu->watts)
TEXT_FIELD(f_clock, "%u", row->gpu->graphics_clock)
TEXT_FIELD(f_video_clock, "%u", row->gpu->video_clock)
TEXT_FIELD(f_max_clock, "%u", row->gpu->max_clock)
TEXT_FIELD(f_default, "%s", "Default")
TEXT_FIELD(f_disabled, "%s", "Disabled")
TEXT_FIELD(f_one, "%s", "1")
TEXT_FIELD(f_sixteen, "%s", "16")
TEXT_FIELD(f_pid, "%u", row->process->pid)
TEXT_FIELD(f_process_name, "%s", row->process->name)
MEMORY_FIELD(f_total, total)
MEMORY_FIELD(f_used, used)
MEMORY_FIELD(f_free, free)

static bool f_process_memory(const struct row *row, char *out, size_t size)
{
    snprintf(out, size, "%llu", row->process->bytes / MIB);
    return row->process->bytes != SIM_UNKNOWN;
}

static bool f_missing(const struct row *row, char *out, size_t size)
{
    (void)row;
    (void)out;
    (void)size;
    return false;
}

static const struct field gpu_fields[] = {
    {"timestamp", NULL, f_timestamp},
    {"driver_version", NULL, f_driver},
    {"count", NULL, f_count},
    {"name|gpu_name", NULL, f_name},
    {"uuid|gpu_uuid", NULL, f_uuid},
    {"index", NULL, f_index},
    {"serial|gpu_serial", NULL, f_missing},
    {"pci.bus_id|gpu_bus_id", NULL, f_bus_id},
    {"pci.domain", NULL, f_domain},
    {"pci.bus", NULL, f_bus},
    {"pci.device", NULL, f_pci_device},
    {"pci.device_id", NULL, f_device_id},
    {"pci.sub_device_id", NULL, f_sub_device_id},
    {"pcie.link.gen.current|pcie.link.gen.gpucurrent", NULL, f_one},
    {"pcie.link.gen.max", NULL, f_one},
    {"pcie.link.width.current", NULL, f_one},
    {"pcie.link.width.max", NULL, f_sixteen},
    {"vbios_version", NULL, f_vbios},
    {"display_active|display_mode", NULL, f_disabled},
    {"persistence_mode", NULL, f_persistence},
    {"accounting.mode", NULL, f_disabled},
    {"addressing_mode", NULL, f_addressing},
    {"compute_cap", NULL, f_capability},
    {"compute_mode", NULL, f_default},
    {"pstate", NULL, f_state},
    {"mig.mode.current", NULL, f_missing},
    {"mig.mode.pending", NULL, f_missing},
    {"ecc.mode.current", NULL, f_missing},
    {"ecc.mode.pending", NULL, f_missing},
    {"fan.speed", "%", f_missing},
    {"memory.total", "MiB", f_total},
    {"memory.reserved", "MiB", f_missing},
    {"memory.used", "MiB", f_used},
    {"memory.free", "MiB", f_free},
    {"utilization.gpu", "%", f_utilization},
    {"utilization.memory", "%", f_memory_utilization},
    {"temperature.gpu", NULL, f_temperature},
    {"temperature.memory", NULL, f_missing},
    {"power.draw|power.draw.average|power.draw.instant", "W", f_power},
    {"power.limit", "W", f_missing},
    {"enforced.power.limit", "W", f_missing},
    {"power.default_limit", "W", f_missing},
    {"power.max_limit", "W", f_missing},
    {"power.min_limit", "W", f_missing},
    {"clocks.current.graphics|clocks.gr", "MHz", f_clock},
    {"clocks.current.sm|clocks.sm", "MHz", f_clock},
    {"clocks.current.memory|clocks.mem", "MHz", f_missing},
    {"clocks.current.video|clocks.video", "MHz", f_video_clock},
    {"clocks.max.graphics|clocks.max.gr", "MHz", f_max_clock},
    {"clocks.max.sm", "MHz", f_max_clock},
    {"clocks.max.memory|clocks.max.mem", "MHz", f_missing},
    {NULL, NULL, NULL},
};

static const struct field process_fields[] = {
    {"timestamp", NULL, f_timestamp},
    {"gpu_name", NULL, f_name},
    {"gpu_bus_id", NULL, f_bus_id},
    {"gpu_serial", NULL, f_missing},
    {"gpu_uuid", NULL, f_uuid},
    {"pid", NULL, f_pid},
    {"process_name|name", NULL, f_process_name},
    {"used_gpu_memory|used_memory", "MiB", f_process_memory},
    {NULL, NULL, NULL},
};

static const struct field *find_field(const struct field *fields, const char *name)
{
    size_t length = strlen(name);

    for (; fields->names != NULL; fields++)
        for (const char *known = fields->names; *known != '\0'; known += strcspn(known, "|"), known += *known == '|')
            if (strcspn(known, "|") == length && strncmp(known, name, length) == 0)
                return fields;
    return NULL;
}

static void print_row(const struct field *const *wanted, size_t count, const struct row *row, bool units)
{
    for (size_t i = 0; i < count; i++) {
        char value[1100];
        fputs(i == 0 ? "" : ", ", stdout);
        if (!wanted[i]->value(row, value, sizeof value))
            fputs("[N/A]", stdout);
        else if (units && wanted[i]->unit != NULL)
            printf("%s %s", value, wanted[i]->unit);
        else
            fputs(value, stdout);
    }
    putchar('\n');
}

static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);

    for (; *list != '\0'; list += strcspn(list, ","), list += *list == ',')
        if (strcspn(list, ",") == length && strncmp(list, word, length) == 0)
            return true;
    return false;
}

/* The header has the first of the field's names, as asked for or not. */
static void print_csv(const struct field *fields, char *query, const char *format, bool of_processes)
{
    const struct field *wanted[FIELDS];
    size_t count = 0;

    for (char *name = strtok(query, ","); name != NULL; name = strtok(NULL, ",")) {
        name += strspn(name, " ");
        wanted[count] = find_field(fields, name);
        if (wanted[count] == NULL || ++count == FIELDS) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            exit(USAGE_ERROR);
        }
    }
    for (size_t i = 0; i < count && !has_word(format, "noheader"); i++) {
        printf("%s%.*s", i == 0 ? "" : ", ", (int)strcspn(wanted[i]->names, "|"), wanted[i]->names);
        if (wanted[i]->unit != NULL)
            printf(" [%s]", wanted[i]->unit);
        if (i + 1 == count)
            putchar('\n');
    }
    for (size_t i = 0; i < gpu_count; i++) {
        struct row row = {.gpu = &gpus[i]};
        if (!of_processes)
            print_row(wanted, count, &row, !has_word(format, "nounits"));
        for (size_t j = 0; of_processes && j < gpus[i].process_count; j++) {
            row.process = &gpus[i].processes[j];
            if (row.process->compute)
                print_row(wanted, count, &row, !has_word(format, "nounits"));
        }
    }
}

/* ---------------------------------------------------------------- the command line */

static void print_version(void)
{
    char short_version[32];
    const char *dot = strchr(driver_version, '.');
    int length = dot == NULL ? (int)strlen(driver_version) : (int)(dot - driver_version) + 1 + (int)strcspn(dot + 1, ".");

    snprintf(short_version, sizeof short_version, "%.*s", length, driver_version);
    printf("NVIDIA-SMI version  : %s\nNVML version        : %s\n", driver_version, short_version);
    if (kmd_text)
        printf("DRIVER version      : Deprecated, see \"KMD version\" instead\n"
               "CUDA version        : Deprecated, see \"CUDA UMD version\" instead\n"
               "KMD version         : %s\nCUDA UMD version    : %s\n",
               driver_version, cuda_version);
    else
        printf("DRIVER version      : %s\nCUDA Version        : %s\n", driver_version, cuda_version);
}

static void refuse_usage(void)
{
    puts("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
    exit(USAGE_ERROR);
}

static const char *option_value(const char *argument, const char *option)
{
    size_t length = strlen(option);

    return strncmp(argument, option, length) == 0 && argument[length] == '=' ? argument + length + 1 : NULL;
}

int main(int argc, char **argv)
{
    bool list = false, query = false, version = false;
    const char *gpu_query = NULL, *process_query = NULL, *format = NULL, *only = NULL, *value;

    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (strcmp(argument, "-L") == 0 || strcmp(argument, "--list-gpus") == 0)
            list = true;
        else if (strcmp(argument, "-q") == 0 || strcmp(argument, "--query") == 0)
            query = true;
        else if (strcmp(argument, "-x") == 0 || strcmp(argument, "--xml-format") == 0)
            as_xml = true;
        else if (strcmp(argument, "--version") == 0)
            version = true;
        else if (strcmp(argument, "-i") == 0 && i + 1 < argc)
            only = argv[++i];
        else if ((value = option_value(argument, "--id")) != NULL || (value = option_value(argument, "-i")) != NULL)
            only = value;
        else if ((value = option_value(argument, "--query-gpu")) != NULL)
            gpu_query = value;
        else if ((value = option_value(argument, "--query-compute-apps")) != NULL || (value = option_value(argument, "--query-apps")) != NULL)
            process_query = value;
        else if ((value = option_value(argument, "--format")) != NULL)
            format = value;
        else if (strcmp(argument, "-h") == 0 || strcmp(argument, "--help") == 0) {
            puts("nvidia-smi [-L | -q [-x] | --version | --query-gpu=FIELDS --format=csv[,noheader][,nounits] |\n"
                 "            --query-compute-apps=FIELDS --format=csv[,noheader][,nounits]] [-i INDEX|UUID|BUS_ID]");
            return 0;
        } else
            refuse_usage();
    }
    bool csv = gpu_query != NULL || process_query != NULL;
    if ((gpu_query != NULL && process_query != NULL) || csv != (format != NULL) || (csv && !has_word(format, "csv")) || (as_xml && !query)
        || list + query + version + csv > 1)
        refuse_usage();

    load_library();
    initialize();
    read_versions();
    if (version) {
        print_version();
        return 0;
    }
    read_gpus(only);
    for (size_t i = 0; i < gpu_count && !list && gpu_query == NULL; i++)
        read_processes(&gpus[i]);
    if (list) {
        for (size_t i = 0; i < gpu_count; i++)
            printf("GPU %u: %s (UUID: %s)\n", gpus[i].index, gpus[i].name, gpus[i].uuid);
    } else if (query) {
        print_query();
    } else if (csv) {
        char *fields = strdup(gpu_query != NULL ? gpu_query : process_query);
        if (fields == NULL)
            return NVML_ERROR_MEMORY;
        print_csv(gpu_query != NULL ? gpu_fields : process_fields, fields, format, process_query != NULL);
        free(fields);
    } else {
        print_table();
    }
    return fflush(stdout) == 0 ? 0 : 255;
}
