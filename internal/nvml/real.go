package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// answers says whether a libnvidia-ml that is not our double initializes. The
// library is called by address and opened with RTLD_LOCAL: a call through
// go-nvml would bind the whole process to this library for ever.
static int answers(const char *path) {
	void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	if (library == NULL) return 0;
	int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
	int (*shutdown)(void) = (int (*)(void))dlsym(library, "nvmlShutdown");
	int yes = dlsym(library, "topodra_nvml_double") == NULL && init != NULL && init() == 0;
	if (yes && shutdown != NULL) shutdown();
	dlclose(library);
	return yes;
}
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// RefuseIfReal returns an error when a real NVML answers below a driver root:
// a simulated node on a machine with GPUs would hand out devices that do not
// exist and hide those that do.
func RefuseIfReal(driverRoot string) error {
	for _, library := range FindLibraries(driverRoot) {
		path := C.CString(library)
		answers := C.answers(path) != 0
		C.free(unsafe.Pointer(path))
		if answers {
			return fmt.Errorf("this machine has NVIDIA GPUs (%s answers): remove --simulate, or run the simulation on a machine without them", library)
		}
	}
	return nil
}
