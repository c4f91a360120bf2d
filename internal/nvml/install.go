package nvml

import (
	"os"
	"path/filepath"
	"runtime"
)

const libraryName = "libnvidia-ml.so.1"

// driverRoots are where, below the root of a host, an NVIDIA driver lives: the
// host itself, the driver container of the GPU operator, and GKE's installer.
var driverRoots = []string{"", "run/nvidia/driver", "home/kubernetes/bin/nvidia"}

// libraryDirs are where, below a driver root, distributions put the libraries.
func libraryDirs() []string {
	multiarch := "x86_64-linux-gnu"
	if runtime.GOARCH == "arm64" {
		multiarch = "aarch64-linux-gnu"
	}
	return []string{
		"usr/lib64",
		"usr/lib/" + multiarch,
		"usr/lib/" + multiarch + "/nvidia/current",
		"lib64",
		"lib/" + multiarch,
		"usr/lib",
	}
}

// install is one NVIDIA driver below the root of a host.
type install struct {
	root    string // holds the driver's libraries and programs
	devRoot string // holds dev/nvidiactl
	library string // path of libnvidia-ml.so.1
}

func findInstalls(hostRoot string) []install {
	var found []install
	for _, sub := range driverRoots {
		root := filepath.Join(hostRoot, sub)
		for _, dir := range libraryDirs() {
			library := filepath.Join(root, dir, libraryName)
			// Stat follows the link to the versioned file, which must exist too.
			if info, err := os.Stat(library); err != nil || !info.Mode().IsRegular() {
				continue
			}
			devRoot := root
			if _, err := os.Stat(filepath.Join(root, "dev/nvidiactl")); err != nil {
				devRoot = hostRoot
			}
			found = append(found, install{root: root, devRoot: devRoot, library: library})
		}
	}
	return found
}

// FindLibraries returns every libnvidia-ml.so.1 below the root of a host, the
// one that List uses first.
func FindLibraries(hostRoot string) []string {
	var paths []string
	for _, i := range findInstalls(hostRoot) {
		paths = append(paths, i.library)
	}
	return paths
}
