package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
)

// metadataFiles are what the helper writes for each request of a claim: a file with
// device metadata, on disk, and a CDI file that mounts it, in a tmpfs. Names and
// contents are the helper's; a test compares.
type metadataFiles struct {
	cdiDir, dataDir string
}

// operations write without the syncs of the helper's own, four per request of a
// claim: every Prepare writes the files anew, so also the first one after a power
// loss.
func (f metadataFiles) operations() kubeletplugin.MetadataFileOperations {
	return kubeletplugin.MetadataFileOperations{WriteFile: writeFile}
}

// restore writes missing CDI files of known claims again, because a container
// cannot restart without them and the helper writes them in Prepare only. Files of
// claims that are not known are dropped, except those of the last minute: another
// instance of the driver may be preparing their claim.
func (f metadataFiles) restore(ctx context.Context, known func(types.UID) bool) {
	logger := klog.FromContext(ctx)
	files, err := filepath.Glob(filepath.Join(f.dataDir, "dra-device-metadata", "*", "*", "metadata.json"))
	if err != nil {
		logger.Error(err, "Device metadata cannot be looked for")
	}
	for _, file := range files {
		written, err := f.restoreFile(file, known)
		switch {
		case err != nil:
			logger.Error(err, "CDI file of device metadata could not be written again", "metadata", file)
		case written != "":
			logger.Info("Wrote a missing CDI file of device metadata again", "file", written)
		}
	}
}

// restoreFile returns the name of the CDI file if it wrote it.
func (f metadataFiles) restoreFile(file string, known func(types.UID) bool) (written string, err error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	// The file has the same object once per version; the first is enough.
	var m metadatav1beta1.DeviceMetadata
	if err := json.NewDecoder(bytes.NewReader(content)).Decode(&m); err != nil {
		return "", err
	}
	if !known(m.UID) {
		info, err := os.Stat(file)
		if err == nil && time.Since(info.ModTime()) > time.Minute {
			err = os.RemoveAll(filepath.Dir(filepath.Dir(file)))
		}
		return "", err
	}
	request := filepath.Base(filepath.Dir(file))
	name := filepath.Join(f.cdiDir, fmt.Sprintf("%s_metadata_%s_%s.json", v1alpha1.Group, m.UID, request))
	if _, err := os.Stat(name); err == nil {
		return "", nil
	}
	inContainer := metadata.ResourceClaimFilePath(v1alpha1.Group, m.Name, request)
	if m.PodClaimName != nil && *m.PodClaimName != "" {
		inContainer = metadata.ResourceClaimTemplateFilePath(v1alpha1.Group, *m.PodClaimName, request)
	}
	content, err = cdi.MountFile(v1alpha1.Group+"/metadata", string(m.UID)+"_"+request, file, inContainer)
	if err != nil {
		return "", err
	}
	return name, errors.Join(os.MkdirAll(f.cdiDir, 0o755), writeFile(name, content, 0o644))
}

// writeFile replaces a file atomically. A leftover of a crash is hidden and ends
// in .tmp, so no runtime reads it as CDI.
func writeFile(name string, data []byte, perm os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(perm), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
