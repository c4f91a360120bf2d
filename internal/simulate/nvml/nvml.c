// A double of NVIDIA's libnvidia-ml.so.1 for simulated nodes. It answers from a
// flat file of facts that internal/simulate writes next to it, and touches no
// hardware. internal/simulate/facts.go documents the format of the file.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi.h"
#include "absent.h"

#define FACTS_ENV "TOPODRA_NVML_FACTS"
#define FACTS_NAME "topodra-nvml.facts"
#define MAX_GPUS 64

// The mark by which internal/simulate tells this library from the real one.
const int topodra_nvml_double = 1;

typedef struct gpu {
	char uuid[80], name[96];
	unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
	int minor;
	unsigned long long memory; // 0: not known
	int major_capability, minor_capability;
	int architecture, brand; // -1: not known
	int mig;                 // -1: not supported
	int nvlinks;             // -1: not known
	int has_fabric;
	unsigned char cluster[16];
	unsigned int clique;
	nvmlReturn error; // every query on this GPU returns it
} gpu;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sessions;
static gpu gpus[MAX_GPUS];
static unsigned int gpu_count;
static char driver_version[80];
static int cuda_version;

// go-nvml calls NVML through the process-wide symbol table, so with two copies
// of this library in one process the first one loaded answers all calls. The
// directory is one exported variable for the same reason: a copy that is opened
// later writes to the variable of the first, which then reads the later facts.
char topodra_nvml_dir[PATH_MAX];

static void own_dir(char *dir) {
	Dl_info info;
	dir[0] = 0;
	if (!dladdr((void *)own_dir, &info) || !info.dli_fname) return;
	snprintf(dir, PATH_MAX, "%s", info.dli_fname);
	char *slash = strrchr(dir, '/');
	if (slash) *slash = 0;
	else strcpy(dir, ".");
}

__attribute__((constructor)) static void opened(void) { own_dir(topodra_nvml_dir); }

__attribute__((destructor)) static void closed(void) {
	char dir[PATH_MAX];
	own_dir(dir);
	if (!strcmp(dir, topodra_nvml_dir)) topodra_nvml_dir[0] = 0;
}

static void read_cluster(gpu *g, const char *value) {
	for (int i = 0; i < 16; i++) {
		unsigned int byte;
		if (sscanf(value + 2 * i, "%2x", &byte) != 1) return;
		g->cluster[i] = byte;
	}
	g->has_fabric = sscanf(value + 32, "%u", &g->clique) == 1;
}

static void read_gpu_fact(gpu *g, const char *key, const char *value) {
	if (!strcmp(key, "uuid")) snprintf(g->uuid, sizeof g->uuid, "%s", value);
	else if (!strcmp(key, "name")) snprintf(g->name, sizeof g->name, "%s", value);
	else if (!strcmp(key, "pci")) sscanf(value, "%x:%x:%x", &g->domain, &g->bus, &g->device);
	else if (!strcmp(key, "pci_id")) g->pciDeviceId = strtoul(value, NULL, 16);
	else if (!strcmp(key, "pci_subsystem_id")) g->pciSubSystemId = strtoul(value, NULL, 16);
	else if (!strcmp(key, "minor")) g->minor = atoi(value);
	else if (!strcmp(key, "memory")) g->memory = strtoull(value, NULL, 10);
	else if (!strcmp(key, "capability")) sscanf(value, "%d.%d", &g->major_capability, &g->minor_capability);
	else if (!strcmp(key, "architecture")) g->architecture = atoi(value);
	else if (!strcmp(key, "brand")) g->brand = atoi(value);
	else if (!strcmp(key, "mig")) g->mig = atoi(value);
	else if (!strcmp(key, "nvlinks")) g->nvlinks = atoi(value);
	else if (!strcmp(key, "fabric") && strlen(value) > 32) read_cluster(g, value);
	else if (!strcmp(key, "error")) g->error = atoi(value);
}

// read_facts fills the tables. Without a file there is no simulated driver: a
// container that got this library as a mount sees just that.
static nvmlReturn read_facts(void) {
	char path[PATH_MAX + sizeof FACTS_NAME + 1], line[512];
	const char *env = getenv(FACTS_ENV);
	if (env && *env) {
		snprintf(path, sizeof path, "%s", env);
	} else {
		if (!topodra_nvml_dir[0]) own_dir(topodra_nvml_dir);
		snprintf(path, sizeof path, "%s/%s", topodra_nvml_dir, FACTS_NAME);
	}
	FILE *file = fopen(path, "re");
	if (!file) return NVML_ERROR_DRIVER_NOT_LOADED;

	nvmlReturn result = NVML_SUCCESS;
	gpu *g = NULL;
	gpu_count = 0;
	cuda_version = 0;
	driver_version[0] = 0;
	while (fgets(line, sizeof line, file)) {
		line[strcspn(line, "\n")] = 0;
		char *value = strchr(line, ' ');
		if (value) *value++ = 0;
		else value = "";
		if (!strcmp(line, "gpu")) {
			if (gpu_count == MAX_GPUS) break;
			g = &gpus[gpu_count++];
			*g = (gpu){.architecture = -1, .brand = -1, .mig = -1, .nvlinks = -1};
		} else if (g) {
			read_gpu_fact(g, line, value);
		} else if (!strcmp(line, "driver_version")) {
			snprintf(driver_version, sizeof driver_version, "%s", value);
		} else if (!strcmp(line, "cuda_version")) {
			cuda_version = atoi(value);
		} else if (!strcmp(line, "init")) {
			result = atoi(value);
		}
	}
	fclose(file);
	return result;
}

nvmlReturn nvmlInitWithFlags(unsigned int flags) {
	(void)flags;
	pthread_mutex_lock(&lock);
	nvmlReturn result = sessions ? NVML_SUCCESS : read_facts();
	if (result == NVML_SUCCESS) sessions++;
	pthread_mutex_unlock(&lock);
	return result;
}

nvmlReturn nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn nvmlInit(void) { return nvmlInitWithFlags(0); }

nvmlReturn nvmlShutdown(void) {
	pthread_mutex_lock(&lock);
	nvmlReturn result = sessions ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
	if (sessions) sessions--;
	pthread_mutex_unlock(&lock);
	return result;
}

const char *nvmlErrorString(nvmlReturn result) {
	switch (result) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	}
	return "Unknown Error";
}

static int initialized(void) {
	pthread_mutex_lock(&lock);
	int yes = sessions > 0;
	pthread_mutex_unlock(&lock);
	return yes;
}

static nvmlReturn text(char *out, unsigned int size, const char *value) {
	if (!initialized()) return NVML_ERROR_UNINITIALIZED;
	if (!out) return NVML_ERROR_INVALID_ARGUMENT;
	if (!*value) return NVML_ERROR_NOT_SUPPORTED;
	if (strlen(value) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, value);
	return NVML_SUCCESS;
}

nvmlReturn nvmlSystemGetDriverVersion(char *version, unsigned int size) { return text(version, size, driver_version); }
nvmlReturn nvmlSystemGetNVMLVersion(char *version, unsigned int size) { return text(version, size, driver_version); }

nvmlReturn nvmlSystemGetCudaDriverVersion_v2(int *version) {
	if (!initialized()) return NVML_ERROR_UNINITIALIZED;
	if (!version) return NVML_ERROR_INVALID_ARGUMENT;
	if (!cuda_version) return NVML_ERROR_NOT_SUPPORTED;
	*version = cuda_version;
	return NVML_SUCCESS;
}

nvmlReturn nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

nvmlReturn nvmlDeviceGetCount_v2(unsigned int *count) {
	if (!initialized()) return NVML_ERROR_UNINITIALIZED;
	if (!count) return NVML_ERROR_INVALID_ARGUMENT;
	*count = gpu_count;
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

static nvmlReturn handle(gpu *g, gpu **device) {
	*device = g;
	return g->error;
}

nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned int index, gpu **device) {
	if (!initialized()) return NVML_ERROR_UNINITIALIZED;
	if (!device || index >= gpu_count) return NVML_ERROR_INVALID_ARGUMENT;
	return handle(&gpus[index], device);
}

nvmlReturn nvmlDeviceGetHandleByIndex(unsigned int index, gpu **device) {
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn nvmlDeviceGetHandleByUUID(const char *uuid, gpu **device) {
	if (!initialized()) return NVML_ERROR_UNINITIALIZED;
	if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < gpu_count; i++)
		if (!strcmp(gpus[i].uuid, uuid)) return handle(&gpus[i], device);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn nvmlDeviceGetHandleByPciBusId_v2(const char *id, gpu **device) {
	unsigned int domain, bus, dev;
	if (!initialized()) return NVML_ERROR_UNINITIALIZED;
	if (!id || !device) return NVML_ERROR_INVALID_ARGUMENT;
	if (sscanf(id, "%x:%x:%x", &domain, &bus, &dev) != 3) {
		domain = 0;
		if (sscanf(id, "%x:%x", &bus, &dev) != 2) return NVML_ERROR_INVALID_ARGUMENT;
	}
	for (unsigned int i = 0; i < gpu_count; i++)
		if (gpus[i].domain == domain && gpus[i].bus == bus && gpus[i].device == dev) return handle(&gpus[i], device);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn nvmlDeviceGetHandleByPciBusId(const char *id, gpu **device) {
	return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

// check is the head of every query on a GPU.
static nvmlReturn check(const gpu *g, const void *out) {
	if (!initialized()) return NVML_ERROR_UNINITIALIZED;
	if (g < gpus || g >= gpus + gpu_count || !out) return NVML_ERROR_INVALID_ARGUMENT;
	return g->error;
}

#define CHECK(g, out) \
	do { \
		nvmlReturn result = check(g, out); \
		if (result != NVML_SUCCESS) return result; \
	} while (0)

nvmlReturn nvmlDeviceGetUUID(gpu *g, char *uuid, unsigned int size) {
	CHECK(g, uuid);
	return text(uuid, size, g->uuid);
}

nvmlReturn nvmlDeviceGetName(gpu *g, char *name, unsigned int size) {
	CHECK(g, name);
	return text(name, size, g->name);
}

nvmlReturn nvmlDeviceGetIndex(gpu *g, unsigned int *index) {
	CHECK(g, index);
	*index = g - gpus;
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetMinorNumber(gpu *g, unsigned int *minor) {
	CHECK(g, minor);
	*minor = g->minor;
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetBrand(gpu *g, unsigned int *brand) {
	CHECK(g, brand);
	if (g->brand < 0) return NVML_ERROR_NOT_SUPPORTED;
	*brand = g->brand;
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetArchitecture(gpu *g, unsigned int *architecture) {
	CHECK(g, architecture);
	*architecture = g->architecture < 0 ? NVML_DEVICE_ARCH_UNKNOWN : (unsigned int)g->architecture;
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetCudaComputeCapability(gpu *g, int *major, int *minor) {
	CHECK(g, major);
	if (!minor) return NVML_ERROR_INVALID_ARGUMENT;
	if (!g->major_capability) return NVML_ERROR_NOT_SUPPORTED;
	*major = g->major_capability;
	*minor = g->minor_capability;
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetMemoryInfo(gpu *g, nvmlMemory *memory) {
	CHECK(g, memory);
	if (!g->memory) return NVML_ERROR_NOT_SUPPORTED;
	*memory = (nvmlMemory){.total = g->memory, .free = g->memory};
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetMemoryInfo_v2(gpu *g, nvmlMemoryV2 *memory) {
	CHECK(g, memory);
	if (memory->version != STRUCT_VERSION(nvmlMemoryV2, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!g->memory) return NVML_ERROR_NOT_SUPPORTED;
	memory->total = memory->free = g->memory;
	memory->reserved = memory->used = 0;
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetPciInfo_v3(gpu *g, nvmlPciInfo *pci) {
	CHECK(g, pci);
	*pci = (nvmlPciInfo){
		.domain = g->domain,
		.bus = g->bus,
		.device = g->device,
		.pciDeviceId = g->pciDeviceId,
		.pciSubSystemId = g->pciSubSystemId,
	};
	// The legacy form has room for four digits of the domain only.
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", g->domain & 0xffff, g->bus & 0xff, g->device & 0x1f);
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", g->domain, g->bus, g->device);
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetMigMode(gpu *g, unsigned int *current, unsigned int *pending) {
	CHECK(g, current);
	if (!pending) return NVML_ERROR_INVALID_ARGUMENT;
	if (g->mig < 0) return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = g->mig;
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceIsMigDeviceHandle(gpu *g, unsigned int *mig) {
	CHECK(g, mig);
	*mig = 0;
	return NVML_SUCCESS;
}

// A simulated GPU in MIG mode has no instances.
nvmlReturn nvmlDeviceGetMaxMigDeviceCount(gpu *g, unsigned int *count) {
	CHECK(g, count);
	*count = 0;
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetMigDeviceHandleByIndex(gpu *g, unsigned int index, gpu **mig) {
	(void)index;
	CHECK(g, mig);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn nvmlDeviceGetNvLinkState(gpu *g, unsigned int link, unsigned int *active) {
	CHECK(g, active);
	if (g->nvlinks < 0) return NVML_ERROR_NOT_SUPPORTED;
	if (link >= (unsigned int)g->nvlinks) return NVML_ERROR_INVALID_ARGUMENT;
	*active = 1;
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetGpuFabricInfo(gpu *g, nvmlGpuFabricInfo *info) {
	CHECK(g, info);
	if (!g->has_fabric) return NVML_ERROR_NOT_SUPPORTED;
	*info = (nvmlGpuFabricInfo){.cliqueId = g->clique, .state = NVML_GPU_FABRIC_STATE_COMPLETED};
	memcpy(info->clusterUuid, g->cluster, sizeof info->clusterUuid);
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetGpuFabricInfoV(gpu *g, nvmlGpuFabricInfoV2 *info) {
	CHECK(g, info);
	int v3 = info->version == STRUCT_VERSION(nvmlGpuFabricInfoV3, 3);
	if (!v3 && info->version != STRUCT_VERSION(nvmlGpuFabricInfoV2, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!g->has_fabric) return NVML_ERROR_NOT_SUPPORTED;
	memcpy(info->clusterUuid, g->cluster, sizeof info->clusterUuid);
	info->status = NVML_SUCCESS;
	info->cliqueId = g->clique;
	info->state = NVML_GPU_FABRIC_STATE_COMPLETED;
	info->healthMask = 0;
	if (v3) ((nvmlGpuFabricInfoV3 *)info)->healthSummary = 0;
	return NVML_SUCCESS;
}

// Event sets exist and stay silent: nothing ever happens to a simulated GPU.

nvmlReturn nvmlEventSetCreate(void **set) {
	if (!initialized()) return NVML_ERROR_UNINITIALIZED;
	if (!set) return NVML_ERROR_INVALID_ARGUMENT;
	*set = malloc(1);
	return NVML_SUCCESS;
}

nvmlReturn nvmlEventSetFree(void *set) {
	free(set);
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetSupportedEventTypes(gpu *g, unsigned long long *types) {
	CHECK(g, types);
	*types = 0x1f; // ECC single and double bit, P-state, XID, clock
	return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceRegisterEvents(gpu *g, unsigned long long types, void *set) {
	(void)types;
	CHECK(g, set);
	return NVML_SUCCESS;
}

nvmlReturn nvmlEventSetWait_v2(void *set, void *data, unsigned int milliseconds) {
	if (!initialized()) return NVML_ERROR_UNINITIALIZED;
	if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
	struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
	while (nanosleep(&left, &left) && errno == EINTR)
		;
	return NVML_ERROR_TIMEOUT;
}

nvmlReturn nvmlEventSetWait(void *set, void *data, unsigned int milliseconds) {
	return nvmlEventSetWait_v2(set, data, milliseconds);
}
