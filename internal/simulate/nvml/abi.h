// The part of the NVML ABI that the double fills in. Layouts and numbers are
// those of NVIDIA's nvml.h, version 13; everything else is in absent.h.
#ifndef TOPODRA_NVML_ABI_H
#define TOPODRA_NVML_ABI_H

typedef int nvmlReturn;

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

enum { NVML_GPU_FABRIC_STATE_COMPLETED = 3 };

#define NVML_DEVICE_ARCH_UNKNOWN 0xffffffffu

// STRUCT_VERSION is how NVML marks versioned structures: size and version.
#define STRUCT_VERSION(type, version) ((unsigned int)(sizeof(type) | ((version) << 24U)))

typedef struct {
	char busIdLegacy[16];
	unsigned int domain, bus, device;
	unsigned int pciDeviceId; // device id << 16 | vendor id
	unsigned int pciSubSystemId;
	char busId[32]; // "%08X:%02X:%02X.0"
} nvmlPciInfo;

typedef struct {
	unsigned long long total, free, used; // bytes
} nvmlMemory;

typedef struct {
	unsigned int version;
	unsigned long long total, reserved, free, used; // bytes
} nvmlMemoryV2;

typedef struct {
	unsigned char clusterUuid[16];
	nvmlReturn status;
	unsigned int cliqueId;
	unsigned char state;
} nvmlGpuFabricInfo;

typedef struct {
	unsigned int version;
	unsigned char clusterUuid[16];
	nvmlReturn status;
	unsigned int cliqueId;
	unsigned char state;
	unsigned int healthMask;
} nvmlGpuFabricInfoV2;

typedef struct {
	unsigned int version;
	unsigned char clusterUuid[16];
	nvmlReturn status;
	unsigned int cliqueId;
	unsigned char state;
	unsigned int healthMask;
	unsigned char healthSummary;
} nvmlGpuFabricInfoV3;

#endif
