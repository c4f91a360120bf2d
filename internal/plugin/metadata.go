package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api/v1alpha1"
)

// metadataFiles are the file operations that the helper uses for device
// metadata: the metadata files, which lie on disk, and CDI files that mount
// them, which lie in a tmpfs. It differs from the helper's own operations in two
// ways. It does not sync, which the helper does four times per request of a
// claim: every Prepare writes the files anew, so also the first one after a
// power loss. And it keeps copies of the CDI files on disk, because a container
// cannot restart without them and the helper writes them in Prepare only.
type metadataFiles struct {
	cdiDir, keepDir string
}

// cdiPrefix is how the helper names its CDI files: the claim's UID, "_" and the
// request follow.
const cdiPrefix = v1alpha1.Group + "_metadata_"

func newMetadataFiles(cdiDir, dataDir string) (metadataFiles, error) {
	f := metadataFiles{cdiDir: filepath.Clean(cdiDir), keepDir: filepath.Join(dataDir, "metadata-cdi")}
	if err := os.MkdirAll(f.keepDir, 0o750); err != nil {
		return f, fmt.Errorf("copies of CDI files: %w", err)
	}
	return f, nil
}

func (f metadataFiles) operations() kubeletplugin.MetadataFileOperations {
	return kubeletplugin.MetadataFileOperations{WriteFile: f.write, Remove: f.remove, Glob: f.glob}
}

// kept returns the path of the copy of a CDI file.
func (f metadataFiles) kept(name string) (string, bool) {
	return filepath.Join(f.keepDir, filepath.Base(name)), filepath.Dir(name) == f.cdiDir
}

func (f metadataFiles) write(name string, data []byte, perm os.FileMode) error {
	if kept, ok := f.kept(name); ok {
		if err := writeFile(kept, data, perm); err != nil {
			return err
		}
	}
	return writeFile(name, data, perm)
}

func (f metadataFiles) remove(name string) error {
	err := os.Remove(name)
	if kept, ok := f.kept(name); ok && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		return os.Remove(kept)
	}
	return err
}

// glob finds CDI files of which only the copy is left, too.
func (f metadataFiles) glob(pattern string) ([]string, error) {
	kept, ok := f.kept(pattern)
	if !ok {
		return filepath.Glob(pattern)
	}
	matches, err := filepath.Glob(kept)
	for i := range matches {
		matches[i] = filepath.Join(f.cdiDir, filepath.Base(matches[i]))
	}
	return matches, err
}

// restore writes CDI files again that are missing, and drops the copies of
// claims that are not known. Copies of the last minute stay: another instance of
// the driver may have made them for a claim that it is preparing.
func (f metadataFiles) restore(ctx context.Context, known func(types.UID) bool) {
	logger := klog.FromContext(ctx)
	entries, err := os.ReadDir(f.keepDir)
	if err != nil {
		logger.Error(err, "Copies of CDI files cannot be read")
		return
	}
	for _, entry := range entries {
		kept, name := filepath.Join(f.keepDir, entry.Name()), filepath.Join(f.cdiDir, entry.Name())
		uid, _, _ := strings.Cut(strings.TrimPrefix(entry.Name(), cdiPrefix), "_")
		if !known(types.UID(uid)) {
			if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > time.Minute {
				_ = os.Remove(kept)
			}
			continue
		}
		if _, err := os.Stat(name); err == nil {
			continue
		}
		content, err := os.ReadFile(kept)
		if err == nil {
			err = errors.Join(os.MkdirAll(f.cdiDir, 0o755), writeFile(name, content, 0o644))
		}
		if err != nil {
			logger.Error(err, "CDI file of device metadata could not be written again", "file", name)
			continue
		}
		logger.Info("Wrote a missing CDI file of device metadata again", "file", name)
	}
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
